"""The training step with each attention, for `flash_benchmarking`."""

from pandas import DataFrame, Series

from cs336_systems.compare.speed import SAME
from scripts.rendering.answer import NOTHING, Answer, Captioned, say
from scripts.rendering.grid import NONE, Columns, grid
from scripts.rendering.markup import Typst
from scripts.views.data import last, one, reason, select
from scripts.views.steps import steady, step_table
from scripts.views.verdicts import Speed, against

KEYS = ["size", "label", "context", "precision"]
OTHERS = ("plain", "sdpa")
COLUMNS = {"plain": " plain", "SDPA": " sdpa", "ours": ""}
"""The suffix of each attention's columns, by its title."""
MODELS: Columns = {
    "": {"model": "{label}", "context": "{context}"},
    "step / ms": {title: f"{{step{way}:sig}} ({{p20{way}:sig}}–{{p80{way}:sig}})" for title, way in COLUMNS.items()},
    "device busy / ms": {title: f"{{device_busy{way}:.1f}}" for title, way in COLUMNS.items()},
    "time over ours": {"plain": "{over plain}", "SDPA": "{over sdpa}"},
    "peak / GiB": {"plain": "{peak_memory plain:GiB}", "ours": "{peak_memory:GiB}"},
}


def trained(table: DataFrame) -> DataFrame:
    """The eager training steps with our attention, small to large, with the columns of the same steps with OTHERS.

    Added: `against plain` and `against sdpa`, ours against them, and the same for a table as `over plain` and `over
    sdpa`.
    """
    steps = select(steady(step_table(table)), mode="train_step", compiled=False)
    flash = select(steps, attention="flash")
    for way in OTHERS:
        others = select(steps, attention=way)
        speeds = [against(row, one(others, **dict(row[KEYS]))) for _, row in flash.iterrows()]
        flash = flash.merge(others, how="left", on=KEYS, suffixes=("", f" {way}"))
        flash[f"against {way}"], flash[f"over {way}"] = Series(speeds, dtype=object), list(map(ratio_of, speeds))
    return flash


def ratio_of(speed: Speed) -> str:
    """How a table shows a comparison."""
    if speed.ratio is None or speed.why:
        return NONE
    return "on par" if speed.verdict == SAME else f"{speed.ratio:.2f}×"


def most_gained(table: DataFrame) -> Series | None:
    """The largest model whose gain over plain attention is decided."""
    models = trained(table)
    return last(models[[speed.faster is not None for speed in models["against plain"]]])


def in_the_model(table: DataFrame) -> Answer:
    """The gain of the kernels in training."""
    models, model = trained(table), most_gained(table)
    if not len(models):
        return Answer("In the model", missing="Not measured: the kernels need a GPU.")
    if model is None:
        compared = models[[speed.ratio is not None for speed in models["against sdpa"]]]
        model = (compared if len(compared) else models).iloc[-1]
    place = say("({model[label]}, context {model[context]}, {model[precision]})", model=model)
    gain = step_sentence(model["against plain"], "plain attention", place)
    plain = reason(select(table, **dict(model[KEYS]), mode="train_step", compiled=False, attention="plain").head(1))
    others = NOTHING
    if not model["host_bound"]:
        others = step_sentence(model["against sdpa"], "PyTorch’s SDPA", NOTHING if gain else place)
    return Answer(
        asked="In the model",
        verdict=gain or others or "Not compared with plain attention: no step was timed with both.",
        more=say(
            others if gain else "With plain attention this eager step runs out of memory." if "memory" in plain else "",
            "Memory peaks at {model[peak_memory]:gib} with our attention, {model[peak_memory plain]:gib} with plain "
            "attention.",
            model=model,
        ),
        results=Captioned(
            grid(models, MODELS),
            f"Training step in {' and '.join(models['precision'].unique())} with {attentions(models)}: median and 20th "
            f"to 80th percentiles of {models['n'].iloc[-1]:.0f} steps. –: host-bound, too few steps, or not measured.",
        ),
    )


def step_sentence(speed: Speed, other: str, where: str) -> Typst:
    """The verdict on a step with our attention against one with another attention."""
    first, second = ("one", "a step") if speed.faster is False else ("a step", "one")
    return speed.sentence(f"{first} with our attention", f"{second} with {other}", where)


def attentions(models: DataFrame) -> str:
    """The attentions that were timed, in words."""
    names = {" plain": "plain attention", " sdpa": "PyTorch’s SDPA (default backend)"}
    timed = [name for way, name in names.items() if models[f"step{way}"].notna().any()]
    return " and ".join([", ".join(timed), "ours"] if timed else ["ours"])
