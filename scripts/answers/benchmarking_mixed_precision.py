"""Answers to `benchmarking_mixed_precision`: dtypes under autocast, and fp32 against bf16 by size."""

from pandas import DataFrame

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import NOTHING, Answer, Answers, Captioned, Facts, Tables, choose, count, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Tile, Typst, times
from scripts.views.data import PRECISIONS, last, measured_gpu, reference_context, select
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
RETURNED = {"float32": "fp32"} | dict.fromkeys(("float16", "bfloat16"), "low-precision tensors")
BOTH = "forward + backward"
"""The passes by which precisions are compared: the optimizer works on fp32 weights in both."""
EAGER = {"compiled": False, "attention": "plain"}
SPEED: Columns = {
    "size": "{label}{host_bound:star}",
    "forward": {name: f"{{forward_{name}:.1f}}" for name in PRECISIONS},
    BOTH: {name: f"{{{BOTH}_{name}:.1f}}" for name in PRECISIONS},
    "both, on the device": {name: f"{{{BOTH}, busy_{name}:.1f}}" for name in PRECISIONS},
    " ": {"gain": "{gain:.2f}×"},
}


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    on_gpu = bool(measured_gpu({"": tables["end_to_end"]}))
    steps = select(most_complete(steady(step_table(tables["end_to_end"]))), **EAGER)
    pairs = precision_pairs(steps, f"{BOTH}, busy" if on_gpu else BOTH)
    here = select(pairs, context=reference_context(pairs)).dropna(subset="gain")
    dtypes = select(tables["autocast_dtypes"], status="ok").pivot(index="metric", columns="autocast", values="value")
    dtypes = dtypes.reindex(list(COMPONENTS), columns=["fp16", "bf16"])
    return {
        "dtypes": data_types(dtypes.assign(title=list(COMPONENTS.values()))),
        "norm": norm(dtypes),
        "speed": speed_answer(here, tables["kernel_profile"], on_gpu=on_gpu),
        "ends": [here.iloc[place] for place in (0, -1)] if len(here) else [],
        "clock": ", device time" if on_gpu else "",
    }


def tiles(section: Answers) -> list[Tile]:
    """The gain from bf16 at the largest size, and at the smallest."""
    if not section["ends"]:
        return []
    small, large = section["ends"]
    fast, slow, ratio = faster_one(large["gain"])
    passes = f"forward and backward of {large['label']}, context {large['context']}{section['clock']}"
    other = small["gain"] if fast == "bf16" else 1 / small["gain"]
    also = "" if small["label"] == large["label"] else f"; {small['label']}: {times(other)}"
    return [Tile(times(ratio), f"speedup of {fast} over {slow} ({passes}{also})")]


def faster_one(gain: float) -> tuple[str, str, float]:
    """The faster precision, the slower one, and the ratio of their times, above 1."""
    return ("bf16", "fp32", gain) if gain >= 1 else ("fp32", "bf16", 1 / gain)


def precision_pairs(steps: DataFrame, compared: str) -> DataFrame:
    """One row per cell measured in both precisions, small to large, with the columns of each step prefixed by its name.

    Added: `gain`, a time in fp32 over that in bf16; `host_bound`, whether either step is.
    """
    cell = [*(name for name in parameters(EndToEnd) if name != "precision"), "label"]
    sides = [select(steps, precision=name) for name in PRECISIONS]
    pairs = sides[0].merge(sides[1], on=cell, suffixes=[f"_{name}" for name in PRECISIONS])
    return pairs.assign(
        gain=pairs[f"{compared}_fp32"] / pairs[f"{compared}_bf16"],
        host_bound=pairs["host_bound_fp32"].astype(bool) | pairs["host_bound_bf16"].astype(bool),
    )


def data_types(dtypes: DataFrame) -> Answer:
    """Sub-question (a): the dtype of each component."""
    lowered = dtypes[dtypes["fp16"] == "float16"]
    as_expected = "logits" in lowered.index and not {*lowered.index} & {"parameters", "gradients", "loss"}
    return Answer(
        asked="(a) Data types",
        verdict=say(
            choose(
                as_expected,
                "Under autocast, matmuls return low-precision tensors; parameters, gradients and loss stay fp32.",
                "Autocast gives fp16 for {lowered:listing}.",
            ),
            lowered=list(lowered["title"]),
        ),
        more=say(
            "LayerNorm returns {kinds:listing}.",
            kinds=list(dict.fromkeys(map(RETURNED.get, dtypes.loc["norm_output", ["fp16", "bf16"]]))),
        ),
        results=Captioned(
            grid(
                dtypes,
                {"component": "{title}", "autocast to fp16": "{fp16}", "autocast to bf16": "{bf16}"},
                text_columns=3,
            ),
            "Data types observed in a toy model, Linear → ReLU → LayerNorm → Linear, with fp32 parameters.",
        ),
    )


def norm(dtypes: DataFrame) -> Answer:
    """Sub-question (b): the sensitive parts of layer normalization."""
    return Answer(
        asked="(b) Layer normalization",
        verdict="LayerNorm's mean and variance are sensitive: in fp16 their sums can overflow or underflow.",
        more="bf16 has fp32’s range, so overflow is no concern, but 8 significant bits are too few for the statistics.",
    )


def speed_answer(here: DataFrame, profile: DataFrame, *, on_gpu: bool) -> Answer:
    """Sub-question (c): the gain from bf16 by size, and its cause."""
    if not len(here):
        return Answer("(c) Speed", missing="Not measured: no step ran in both precisions.")
    small, large, gains, bound = here.iloc[0], here.iloc[-1], here["gain"], int(here["host_bound"].sum())
    fast, slow, ratio = faster_one(small["gain"])
    facts = Facts(small=small, large=large, fast=fast, slow=slow, ratio=ratio, time="device time" if on_gpu else "time")
    return Answer(
        asked="(c) Speed",
        verdict=facts.say(
            "bf16 is {small[gain]:times} ({small[label]}) to {large[gain]:times} ({large[label]}) as fast as fp32 "
            "({time} of both passes, context {small[context]}).",
        )
        if len(here) > 1 and gains.min() >= 1
        else facts.say(
            "Forward and backward take {ratio:times} as long in {slow} as in {fast} ({small[label]}, context "
            "{small[context]}).",
        )
        if len(here) == 1
        else facts.say(
            "Forward and backward take {gains:listing} as long in fp32 as in bf16 ({time}, context {small[context]}).",
            gains=[say("{row[gain]:times} ({row[label]})", row=row) for _, row in here.iterrows()],
        ),
        more=say(
            "For {bound} of {sizes}, the step is host-bound in at least one precision, so device times are compared.",
            choose(
                gains.is_monotonic_increasing if len(here) > 1 else None,
                "The gain grows with the model.",
                "The gain does not grow steadily with the model.",
            ),
            bound=bound if bound and on_gpu else None,
            sizes=count(len(here), "size"),
        ),
        results=Captioned(
            grid(here, SPEED),
            f"Sums of the phases' medians in ms, eager, context {small['context']}.",
            legend={
                "both, on the device": "gain: ratio of the device times",
                "*": "*: host-bound in at least one precision, so compare only device times",
            },
        ),
        reason=why(here, profile),
    )


def why(here: DataFrame, profile: DataFrame) -> Typst:
    """The source of the gain at the largest size whose step was profiled in both precisions."""
    rows = kernels(profile, FORWARD_AND_BACKWARD, **EAGER, mode="train_step", context=here["context"].iloc[0])
    kind = (rows["category"] == "matmul").map({True: "matmuls ", False: "the rest "}) + rows["precision"]
    spent = rows.assign(kind=kind).pivot_table(index="label", columns="kind", values="ms", aggfunc="sum")
    kinds = [f"{each} {name}" for each in ("matmuls", "the rest") for name in PRECISIONS]
    row = last(spent.reindex(here["label"], columns=kinds).dropna().reset_index())
    if row is None:
        return NOTHING
    matmuls, rest = (row[f"{each} fp32"] / row[f"{each} bf16"] for each in ("matmuls", "the rest"))
    return say(
        "In the profiled passes of {row[label]} at context {context}, matmuls take {row[matmuls fp32]:ms} in fp32 and "
        "{row[matmuls bf16]:ms} in bf16. Everything else, including autocast's casts, takes {row[the rest fp32]:ms} "
        "and {row[the rest bf16]:ms}.",
        "So the larger the share of matmuls, the more bf16 gains." if len(here) > 1 and matmuls > max(rest, 1) else "",
        row=row,
        context=int(here["context"].iloc[0]),
    )
