"""The training step with each attention, for `flash_benchmarking`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from pandas import DataFrame, Series

from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.data import one, select
from scripts.views.kernels import kernels, label_of
from scripts.views.spread import mark
from scripts.views.steps import steady, step_table
from scripts.views.verdicts import Speed, speed

SAME = ("size", "context", "precision", "compiled")


@dataclass(frozen=True)
class Trained:
    """A model's training step with each attention."""

    plain: Series | None
    sdpa: Series | None
    ours: Series

    @property
    def name(self) -> str:
        """The model in words."""
        compiled = ", compiled" if self.ours["compiled"] else ""
        return f"{self.ours['label']} at context {self.ours['context']} ({self.ours['precision']}{compiled})"

    @property
    def over_plain(self) -> Speed:
        """Ours against plain attention."""
        return speed(spread(self.ours), spread(self.plain))

    @property
    def over_sdpa(self) -> Speed:
        """Ours against PyTorch's SDPA."""
        return speed(spread(self.ours), spread(self.sdpa))


def spread(step: Series | None) -> Series | None:
    """A step as `speed` compares it."""
    if step is None:
        return None
    p20, p80 = numpy.quantile(step["samples"], [0.2, 0.8]) if step["samples"] else [step["step"]] * 2
    return Series({"median": step["step"], "p20": p20, "p80": p80, "host_bound": step["host_bound"]})


def trained(table: DataFrame) -> list[Trained]:
    """Every model that was measured with our attention, small to large."""
    steps = select(steady(step_table(table)), mode="train_step")
    return [
        Trained(one(steps, attention="plain", **cell), one(steps, attention="sdpa", **cell), ours)
        for _, ours in select(steps, attention="flash").iterrows()
        for cell in [{name: ours[name] for name in SAME}]
    ]


def most_gained(table: DataFrame) -> Trained | None:
    """The largest model whose gain over plain attention can be told."""
    return next((model for model in reversed(trained(table)) if model.over_plain.faster is not None), None)


def in_the_model(table: DataFrame, profile: DataFrame) -> Answer:
    """What the kernels are for."""
    models, asked = trained(table), "In the model"
    if not models:
        return Answer(asked, NOTHING, missing="Not measured: the kernels need a GPU.")
    gained = most_gained(table)
    last = gained or models[-1]
    return Answer(
        asked=asked,
        verdict=over_plain(gained),
        more=paragraph(
            last.over_sdpa.sentence("Ours", "PyTorch’s SDPA", "there")
            if last.over_sdpa.faster is not None
            else say("PyTorch’s SDPA is as fast, within the spread.")
            if not last.ours["host_bound"]
            else NOTHING,
            say(
                "The peak falls from {plain:GiB} to {ours:GiB}.",
                plain=last.plain["peak_memory"] / 1024 if last.plain is not None else None,
                ours=last.ours["peak_memory"] / 1024,
            ),
        ),
        evidence=[
            Captioned(
                model_table(models),
                f"Training step in {' and '.join(dict.fromkeys(model.ours['precision'] for model in models))} with "
                f"plain attention, PyTorch’s SDPA (the backend that PyTorch picks) and ours: "
                "medians, ms, "
                "a star where std exceeds 5 %; how long the device works in it; ratios of device-bound steps only.",
            )
        ],
        reason=share_of_attention(profile),
    )


def over_plain(model: Trained | None) -> Typst:
    """The verdict on the largest model that has one."""
    if model is None:
        return say("No gain over plain attention can be told: the steps with our attention are host-bound.")
    gain = model.over_plain.ratio or 1
    better, worse, gain = ("our", "plain", gain) if gain > 1 else ("plain", "our", 1 / gain)
    return say(
        "With {better} attention {size} trains {gain:times} as fast as with {worse} attention (context {context}, "
        "{how}).",
        better=better,
        size=model.ours["label"],
        gain=gain,
        worse=worse,
        context=int(model.ours["context"]),
        how=f"{model.ours['precision']}{', compiled' if model.ours['compiled'] else ''}",
    )


def model_table(models: Sequence[Trained]) -> Table:
    """One line per model."""
    body = []
    for model in models:
        every = (model.plain, model.sdpa, model.ours)
        line = [f"{model.ours['label']}{', compiled' if model.ours['compiled'] else ''}", str(model.ours["context"])]
        line += ["–" if step is None else f"{step['step']:.1f}{mark(step)}" for step in every]
        line += ["–" if step is None else fixed_point(step["device_busy"]) for step in every]
        for found in (model.over_plain, model.over_sdpa):
            line.append(
                found.why_untold.replace("closer than their spread", "equal") or fixed_point(found.ratio, 2, "×")
            )
        line += ["–" if step is None else fixed_point(step["peak_memory"] / 1024) for step in (model.plain, model.ours)]
        body.append(line)
    header = ["model", "context", *["plain", "SDPA", "ours"] * 2, "plain / ours", "SDPA / ours", "plain", "ours"]
    groups = [("", 2), ("step / ms", 3), ("device works / ms", 3), ("", 2), ("peak / GiB", 2)]
    return Table(header, body, groups=groups)


def share_of_attention(profile: DataFrame) -> Typst:
    """How little of the step our attention is."""
    launched = kernels(profile, attention="flash", mode="train_step")
    if not len(launched):
        return NOTHING
    launched = select(launched, size=launched["size"].iloc[-1], context=launched["context"].max())
    spent = launched.groupby("category")["ms"].sum()
    return say(
        "With our attention, its kernels take {attention:ms} of the {all:ms} for which the device works in a step of "
        "{size} "
        "(context {context}, {precision}): no faster kernel could gain more.",
        attention=spent.get("attention"),
        all=spent.sum(),
        size=label_of(launched, launched["size"].iloc[0]),
        context=int(launched["context"].iloc[0]),
        precision=launched["precision"].iloc[0],
    )
