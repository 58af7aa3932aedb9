"""The training step with each attention, for `flash_benchmarking`."""

from typing import Any

from pandas import DataFrame

from cs336_systems.compare.speed import SAME
from scripts.rendering.answer import NOTHING, Answer, Captioned, Facts, say
from scripts.rendering.grid import NONE, Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.data import last, one, select
from scripts.views.kernels import kernels
from scripts.views.steps import steady, step_table
from scripts.views.verdicts import Speed, against

KEYS = ("size", "context", "precision", "compiled")
WAYS = ("plain", "sdpa", "flash")
TITLES = {"plain": "plain", "sdpa": "SDPA", "flash": "ours"}
MODELS: Columns = {
    "": {"model": "{label}{how}", "context": "{context}"},
    "step / ms": {title: f"{{{way} step:sig}} ({{{way} p20:sig}}–{{{way} p80:sig}})" for way, title in TITLES.items()},
    "device works / ms": {title: f"{{{way} device_busy:.1f}}" for way, title in TITLES.items()},
    "over ours": {"plain": "{over plain}", "SDPA": "{over sdpa}"},
    "peak / GiB": {"plain": "{plain peak_memory:GiB}", "ours": "{flash peak_memory:GiB}"},
}


def trained(table: DataFrame) -> list[dict[str, Any]]:
    """The training steps of every model that was measured with our attention, small to large.

    Columns: its name in words (`name`, `how`); the columns of each attention's step, prefixed by its name; `plain` and
    `sdpa`, ours against them; and `sdpa_gain`, plain attention's step over SDPA's.
    """
    steps = select(steady(step_table(table)), mode="train_step")
    columns = ["step", "p20", "p80", "device_busy", "peak_memory", "host_bound"]
    found = []
    for _, ours in select(steps, attention="flash").iterrows():
        rows = {way: one(steps, attention=way, **{name: ours[name] for name in KEYS}) for way in WAYS}
        how = ", compiled" if ours["compiled"] else ""
        model = {**ours, "how": how, "precision": f"{ours['precision']}{how}"}
        model["name"] = f"{ours['label']} at context {ours['context']} ({model['precision']})"
        for way, row in rows.items():
            model |= {f"{way} {name}": None if row is None else row[name] for name in columns}
            model[way] = against(ours, row)
            model[f"over {way}"] = ratio_of(model[way])
        gains = [model[way].ratio for way in ("plain", "sdpa")]
        model["sdpa_gain"] = gains[0] / gains[1] if all(gains) else None
        found.append(model)
    return found


def ratio_of(speed: Speed) -> str:
    """How a table shows a comparison."""
    if speed.ratio is None or speed.why:
        return NONE
    return "on par" if speed.verdict == SAME else f"{speed.ratio:.2f}×"


def most_gained(table: DataFrame) -> dict[str, Any] | None:
    """The largest model whose gain over plain attention is decided."""
    return next((model for model in reversed(trained(table)) if model["plain"].faster is not None), None)


def in_the_model(table: DataFrame, profile: DataFrame) -> Answer:
    """The gain of the kernels in training."""
    models = trained(table)
    if not models:
        return Answer("In the model", missing="Not measured: the kernels need a GPU.")
    model = most_gained(table) or models[-1]
    place = say("({model[label]}, context {model[context]}, {model[precision]})", model=model)
    gain = model["plain"].sentence("a step with our attention", "one with plain attention", place)
    return Answer(
        asked="In the model",
        verdict=gain or "Not compared with plain attention: no step was timed with both.",
        more=say(
            NOTHING
            if model["host_bound"]
            else model["sdpa"].sentence("ours", "PyTorch’s SDPA", "there" if gain else place),
            "The peak falls from {model[plain peak_memory]:gib} to {model[flash peak_memory]:gib}.",
            model=model,
        ),
        evidence=Captioned(
            grid(DataFrame(models), MODELS),
            f"Training step in {' and '.join(dict.fromkeys(each['precision'][:4] for each in models))} with "
            "plain attention, PyTorch’s SDPA (the backend that PyTorch picks) and ours: median and 20th to 80th "
            f"percentile of {models[-1]['n']:.0f} steps; how long the device works in it; time over ours. –: "
            "host-bound, too few steps, or not measured.",
        ),
        reason=share_of_attention(profile),
    )


def share_of_attention(profile: DataFrame) -> Typst:
    """Our attention's small share of the step."""
    launched = kernels(profile, attention="flash", mode="train_step")
    row = last(launched)
    if row is None:
        return NOTHING
    launched = select(launched, size=row["size"], context=launched["context"].max())
    spent = launched.groupby("category")["ms"].sum()
    facts = Facts(attention=spent.get("attention"), all=spent.sum(), row=launched.iloc[0])
    return facts.say(
        "Our attention kernels take {attention:ms} of the device's {all:ms} in a step of {row[label]} (context "
        "{row[context]}, {row[precision]}): faster kernels could gain no more than that."
    )
