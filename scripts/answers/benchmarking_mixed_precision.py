"""Answers to `benchmarking_mixed_precision`: dtypes under autocast, and fp32 against bf16 by size."""

from pandas import DataFrame

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import NOTHING, Answer, Captioned, Facts, Found, Tables, count, say, tell
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Tile, Typst, percent, times
from scripts.views.data import PRECISIONS, last, measured_gpu, one, reference_context, select
from scripts.views.kernels import FORWARD_AND_BACKWARD, kernels
from scripts.views.steps import most_complete, steady, step_table

COMPONENTS = {
    "parameters": "parameters",
    "fc1_output": "output of the first Linear",
    "norm_output": "output of LayerNorm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients",
}
BOTH = "forward + backward"
"""The passes by which precisions are compared: the optimizer works on fp32 weights in both."""
EAGER = {"compiled": False, "attention": "plain", "mode": "train_step"}
SPEED: Columns = {
    "size": "{label}{host_bound:star}",
    "forward": {name: f"{{forward_{name}:.1f}}" for name in PRECISIONS},
    BOTH: {name: f"{{{BOTH}_{name}:.1f}}" for name in PRECISIONS},
    "both, on the device": {name: f"{{{BOTH}, busy_{name}:.1f}}" for name in PRECISIONS},
    " ": {"gain": "{shown:.2f}×"},
}


def answers(tables: Tables) -> Found:
    """The section's answers."""
    steps = most_complete(steady(step_table(tables["end_to_end"])))
    pairs = precision_pairs(select(steps, compiled=False, attention="plain"))
    # The device's time is compared; on a CPU, the step's.
    on_gpu = bool(measured_gpu({"": tables["end_to_end"]}))
    pairs["shown"] = pairs["device_gain" if on_gpu else "gain"]
    here = select(pairs, context=reference_context(pairs))
    here = here[here["shown"].notna()]
    return {
        "dtypes": dtypes(tables["autocast_dtypes"]),
        "norm": norm(tables["autocast_dtypes"]),
        "speed": speed_answer(pairs, here, tables["kernel_profile"], on_gpu=on_gpu),
        "ends": [here.iloc[place] for place in (0, -1)] if len(here) else [],
        "of": "device time of forward and backward" if on_gpu else "forward and backward",
    }


def tiles(found: Found) -> list[Tile]:
    """The gain from bf16 at the largest size, and at the smallest."""
    if not found["ends"]:
        return []
    small, large = found["ends"]
    what = f"bf16 over fp32, {found['of']}, {large['label']} at context {large['context']}"
    other = "" if small["label"] == large["label"] else f" ({times(small['shown'])} for {small['label']})"
    return [Tile(times(large["shown"]), what + other)]


def seen(table: DataFrame, way: str) -> dict[str, str]:
    """The dtype of each component under autocast to a precision; a dash where it was not observed."""
    rows = {name: one(table, autocast=way, metric=name) for name in COMPONENTS}
    return {name: "–" if row is None else str(row["value"]) for name, row in rows.items()}


def precision_pairs(steps: DataFrame) -> DataFrame:
    """One row per cell measured in both precisions, small to large, with the columns of each step prefixed by its name.

    Added: `gain`, the time of BOTH in fp32 over that in bf16; `device_gain`, the same for the device's time, NaN on a
    CPU; `host_bound`, whether either step is.
    """
    cell = [*(name for name in parameters(EndToEnd) if name != "precision"), "label"]
    sides = [select(steps, precision=name) for name in PRECISIONS]
    found = sides[0].merge(sides[1], on=cell, suffixes=[f"_{name}" for name in PRECISIONS])
    return found.assign(
        gain=found[f"{BOTH}_fp32"] / found[f"{BOTH}_bf16"],
        device_gain=found[f"{BOTH}, busy_fp32"] / found[f"{BOTH}, busy_bf16"],
        host_bound=found["host_bound_fp32"].astype(bool) | found["host_bound_bf16"].astype(bool),
    )


def dtypes(table: DataFrame) -> Answer:
    """Sub-question (a): the dtype of each component."""
    fp16, bf16 = seen(table, "fp16"), seen(table, "bf16")
    rows = DataFrame({"title": COMPONENTS, "fp16": fp16, "bf16": bf16})
    lowered = {name for name, dtype in fp16.items() if dtype == "float16"}
    as_expected = "logits" in lowered and not lowered & {"parameters", "gradients", "loss"}
    return Answer(
        asked="(a) Data types",
        verdict=say(
            tell(
                as_expected,
                "Under autocast, matmuls return the low precision; parameters, gradients and loss stay fp32.",
                "Autocast gives fp16 for {lowered:listing}.",
            ),
            lowered=[title for name, title in COMPONENTS.items() if name in lowered],
        ),
        more=say("LayerNorm's output is {dtype} under autocast to fp16.", dtype=fp16["norm_output"].strip("–")),
        evidence=Captioned(
            grid(
                rows,
                {"component": "{title}", "autocast to fp16": "{fp16}", "autocast to bf16": "{bf16}"},
                text_columns=3,
            ),
            "Data types observed in a toy model, Linear → ReLU → LayerNorm → Linear, with fp32 parameters.",
        ),
    )


def norm(table: DataFrame) -> Answer:
    """Sub-question (b): the sensitive parts of layer normalization."""
    facts = Facts(raised=seen(table, "fp16")["norm_output"].strip("–"))
    return Answer(
        asked="(b) Layer normalization",
        verdict="LayerNorm's mean and variance are sensitive: in fp16 their sums can overflow or underflow.",
        more="bf16 has fp32's range, so nothing overflows, but its 8 significant bits are too few for the statistics.",
        reason=facts.say("On this device, LayerNorm's output under autocast is {raised}."),
    )


def speed_answer(pairs: DataFrame, here: DataFrame, profile: DataFrame, *, on_gpu: bool) -> Answer:
    """Sub-question (c): the gain from bf16 by size, and its cause."""
    if not len(here):
        return Answer("(c) Speed", missing="Not measured: no step ran in both precisions.")
    small, large = here.iloc[0], here.iloc[-1]
    best = last(pairs[~pairs["host_bound"]].sort_values("gain")) if on_gpu else None
    gains = here["shown"]
    facts = Facts(small=small, large=large, best=best, cells=count(len(pairs), "cell"))
    return Answer(
        asked="(c) Speed",
        verdict=facts.say(
            "bf16 is {small[shown]:times} ({small[label]}) to {large[shown]:times} ({large[label]}) as fast in {what}.",
            what="forward and backward (device time)" if on_gpu else "forward and backward",
        )
        if len(here) > 1 and gains.min() >= 1
        else say(
            "In fp32, forward and backward take {gains:listing} the time of bf16.",
            gains=[say("{row[shown]:times} ({row[label]})", row=row) for _, row in here.iterrows()],
        ),
        more=facts.say(
            tell(
                gains.is_monotonic_increasing if len(here) > 1 else None,
                "The gain grows with the model.",
                "The gain does not grow steadily with the model.",
            ),
            "On the host's clock, device-bound cells gain up to {best[gain]:times} ({best[label]}, context "
            "{best[context]}); {bound} of {cells} are host-bound.",
            bound=int(pairs["host_bound"].sum()),
        ),
        evidence=Captioned(
            grid(here, SPEED),
            f"Sums of the phases' medians in ms, eager, context {small['context']}.",
            legend={"*": "*: host-bound in one precision, so only the device's times can be compared"},
        ),
        reason=say(why(here, profile), by_context(select(pairs, size=large["size"]), profile)),
    )


def by_context(pairs: DataFrame, profile: DataFrame) -> Typst:
    """The gain for one size at each context, next to that of its matmuls and their share."""
    told = pairs.dropna(subset="shown").sort_values("context")
    if len(told) < 2:
        return NOTHING
    spent = time_by_kind(profile, told).reset_index("label", drop=True).reindex(told["context"])
    matmuls, rest = spent["matmuls fp32"], spent["the rest fp32"]
    return say(
        "At context {contexts:listing}, {row[label]} gains {gains:listing}.",
        "Its matmuls alone gain {alone:listing} there, and take {share:listing} of the time in fp32.",
        row=told.iloc[0],
        contexts=list(map(str, told["context"])),
        gains=list(map(times, told["shown"])),
        alone=list(map(times, matmuls / spent["matmuls bf16"])) if spent.notna().all(axis=None) else None,
        share=list(map(percent, matmuls / (matmuls + rest))),
    )


def time_by_kind(profile: DataFrame, cells: DataFrame) -> DataFrame:
    """The device's time for matmuls and for the rest in each precision, ms, by the label and the context of cells."""
    rows = kernels(profile, FORWARD_AND_BACKWARD, **EAGER).merge(cells[["size", "context"]])
    kind = (rows["category"] == "matmul").map({True: "matmuls ", False: "the rest "}) + rows["precision"]
    spent = rows.assign(kind=kind).pivot_table(index=["label", "context"], columns="kind", values="ms", aggfunc="sum")
    return spent.reindex(columns=[f"{each} {name}" for each in ("matmuls", "the rest") for name in PRECISIONS])


def why(here: DataFrame, profile: DataFrame) -> Typst:
    """The source of the gain at the largest size whose step was profiled in both precisions."""
    spent = time_by_kind(profile, here)
    sizes = [label for label in here["label"] if label in spent.dropna().index.get_level_values("label")]
    row = one(spent.reset_index(), label=sizes[-1]) if sizes else None
    gains = {} if row is None else {each: row[f"{each} fp32"] / row[f"{each} bf16"] for each in ("matmuls", "the rest")}
    return say(
        "At {row[label]}, context {row[context]}, matmuls take {row[matmuls fp32]:ms} in fp32 and "
        "{row[matmuls bf16]:ms} in bf16 ({row[matmuls fp32] / row[matmuls bf16]:times}); everything else, including "
        "autocast's casts, takes {row[the rest fp32]:ms} and {row[the rest bf16]:ms}.",
        "So models gain more, the larger the share of their matmuls."
        if len(here) > 1 and gains and gains["matmuls"] > max(gains["the rest"], 1)
        else "",
        row=row,
    )
