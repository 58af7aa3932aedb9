"""Answers to `benchmarking_mixed_precision`: dtypes under autocast, and fp32 against bf16 by size."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Tile, Typst, times
from scripts.views.data import PRECISIONS, measured_gpu, one, reference_context, select
from scripts.views.kernels import FORWARD_AND_BACKWARD, kernels
from scripts.views.precisions import precision_pairs
from scripts.views.steps import most_complete, steady, step_table

COMPONENTS = {
    "parameters": "parameters",
    "fc1_output": "output of the first Linear",
    "norm_output": "output of LayerNorm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients",
}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    steps = most_complete(steady(step_table(tables["end_to_end"])))
    on_gpu = bool(measured_gpu({"": tables["end_to_end"]}))
    pairs = precision_pairs(select(steps, compiled=False, attention="plain"))
    context = reference_context(pairs)
    here = select(pairs, context=context)
    # What is compared: the device's time, on a CPU the step's.
    prefix = "device_" if on_gpu else ""
    compared = here[here[f"{prefix}gain"].notna()]
    return {
        "dtypes": dtypes(tables["autocast_dtypes"]),
        "norm": norm(tables["autocast_dtypes"]),
        "speed": speed_answer(pairs, compared, tables["kernel_profile"], prefix),
        "ends": [compared.iloc[place] for place in (0, -1)] if len(compared) else [],
        "gain": f"{prefix}gain",
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """What bf16 gains at the largest size, and at the smallest."""
    if not found["ends"]:
        return []
    (small, large), gain = found["ends"], found["gain"]
    of = "device time of forward and backward" if gain == "device_gain" else "forward and backward"
    what = f"bf16 over fp32, {of}, {large['label']} at context {large['context']}"
    meaning = f"{what} ({times(small[gain])} for {small['label']})"
    return [Tile(times(large[gain]), meaning, f"gain from bf16, {large['label']}, {large['context']}")]


def seen(table: DataFrame) -> dict[tuple[str, str], str]:
    """The dtype of each component under either autocast, where it was observed."""
    rows = {(way, name): one(table, autocast=way, metric=name) for way in ("fp16", "bf16") for name in COMPONENTS}
    return {key: str(row["value"]) for key, row in rows.items() if row is not None}


def dtypes(table: DataFrame) -> Answer:
    """Sub-question (a): the dtype of each component."""
    found = seen(table)
    body = [
        [title, *(found.get((way, component), "–") for way in ("fp16", "bf16"))]
        for component, title in COMPONENTS.items()
    ]
    kept, lowered = (
        {name: title for name, title in COMPONENTS.items() if found.get(("fp16", name)) == dtype}
        for dtype in ("float32", "float16")
    )
    return Answer(
        asked="(a) Data types",
        verdict=tell(
            {"parameters", "gradients", "loss"} <= kept.keys() and "logits" in lowered,
            Typst("Under autocast matmuls return the low precision; parameters, gradients and loss stay fp32."),
            say("Autocast gives fp16 for {lowered:listing}.", lowered=list(lowered.values())),
        ),
        more=say("LayerNorm's output is {dtype} under autocast to fp16.", dtype=found.get(("fp16", "norm_output"))),
        evidence=[
            Captioned(
                Table(["component", "autocast to fp16", "autocast to bf16"], body, text_columns=3),
                "Data types observed in a toy model, Linear → ReLU → LayerNorm → Linear, with fp32 parameters.",
            )
        ],
    )


def norm(table: DataFrame) -> Answer:
    """Sub-question (b): what in layer normalization is sensitive."""
    raised = seen(table).get(("fp16", "norm_output"))
    return Answer(
        asked="(b) Layer normalization",
        verdict=Typst("Its mean and variance: in fp16 their sums overflow or vanish, and in bf16 they still round."),
        more=Typst("bf16 has fp32's range, so nothing overflows, but the statistics still belong in fp32."),
        reason=paragraph(
            Typst(
                "The sum of squares over the features @ba2016 can exceed fp16's largest number, 65 504; the variance "
                "of small activations can fall below its smallest; and both are long sums, which lose precision as in "
                "@sec-mixed_precision_accumulation. Dividing by the standard deviation spreads the error to every "
                "feature. bf16 has 7 bits of fraction against fp16's 10, so its sums round more."
            ),
            say("Autocast on this device gives LayerNorm's output as {raised}.", raised=raised),
        ),
    )


def speed_answer(pairs: DataFrame, here: DataFrame, profile: DataFrame, prefix: str) -> Answer:
    """Sub-question (c): what bf16 gains by size and by context, and why."""
    gain, on_gpu = f"{prefix}gain", bool(prefix)
    if not len(here):
        return Answer("(c) Speed", NOTHING, missing="Not measured: no step ran in both precisions.")
    small, large = here.iloc[0], here.iloc[-1]
    told = pairs[~pairs["host_bound"]] if on_gpu else pairs[:0]
    best = told.sort_values("gain").iloc[-1] if len(told) else None
    grows = here[gain].is_monotonic_increasing if len(here) > 1 else None
    return Answer(
        asked="(c) Speed",
        verdict=say(
            "bf16 is {few:times} ({small}) to {many:times} ({large}) as fast in {what}.",
            few=small[gain],
            small=small["label"],
            many=large[gain],
            large=large["label"],
            what="the device's part of forward and backward" if on_gpu else "forward and backward",
        )
        if len(here) > 1 and here[gain].min() >= 1
        else say(
            "fp32 over bf16, forward and backward: {gains:listing}.",
            gains=[say("{gain:times} ({label})", gain=row[gain], label=row["label"]) for _, row in here.iterrows()],
        ),
        more=paragraph(
            tell(
                grows,
                Typst("The gain grows with the model."),
                Typst("The gain does not grow steadily with the model."),
            ),
            say(
                "The whole step gains as much only where launches keep up: {gain:times} for {label} at context "
                "{context}. {bound} of {cells} are host-bound.",
                gain=best["gain"] if best is not None else None,
                label=best["label"] if best is not None else None,
                context=int(best["context"]) if best is not None else None,
                bound=int(pairs["host_bound"].sum()),
                cells=count(len(pairs), "cell"),
            ),
        ),
        evidence=[Captioned(speed_table(here, on_gpu=on_gpu), speed_caption(here, on_gpu=on_gpu)), "precision_context"],
        reason=why(pairs, profile, gain),
        details=kinds_table(profile, str(large["size"])),
    )


def speed_caption(here: DataFrame, *, on_gpu: bool) -> str:
    """The caption of the table of times."""
    star = "; a star: host-bound in one precision, so only the device's times can be compared" if on_gpu else ""
    return f"Sums of the phases' medians in ms, eager, context {here['context'].iloc[0]}{star}."


def speed_table(here: DataFrame, *, on_gpu: bool) -> Table:
    """Times of the forward pass and of both passes in both precisions, and the device's."""
    parts = {
        "forward": "forward_{}",
        "forward + backward": "{}",
        **({"both, on the device": "device_{}"} if on_gpu else {}),
    }
    body = []
    for _, row in here.iterrows():
        line = [row["label"] + ("*" if on_gpu and row["host_bound"] else "")]
        for column in parts.values():
            line += [f"{row[column.format(name)]:.1f}" for name in PRECISIONS]
        body.append([*line, f"{row['device_gain' if on_gpu else 'gain']:.2f}×"])
    groups = [("", 1), *((title, 2) for title in parts), ("", 1)]
    return Table(["size", *PRECISIONS * len(parts), "gain"], body, groups=groups)


def matmul_times(profile: DataFrame, size: str) -> DataFrame:
    """Milliseconds in matmuls and in the rest of forward and backward: a row per context, columns (kind, precision)."""
    eager = {"compiled": False, "attention": "plain", "mode": "train_step", "size": size}
    rows = kernels(profile, FORWARD_AND_BACKWARD, **eager)
    rows = rows.assign(kind=(rows["category"] == "matmul").map({True: "matmuls", False: "rest"}))
    return rows.pivot_table(index="context", columns=["kind", "precision"], values="ms", aggfunc="sum").dropna()


def why(pairs: DataFrame, profile: DataFrame, gain: str) -> Typst:
    """What the gain comes from, and why it falls with a long context."""
    size = str(pairs["size"].iloc[-1])
    trained = kernels(profile, mode="train_step")["size"]
    size = next((name for name in reversed(list(dict.fromkeys(pairs["size"]))) if name in set(trained)), size)
    spent = matmul_times(profile, size)
    context = reference_context(spent.reset_index())
    if context is None:
        return NOTHING
    here, last = spent.loc[context], spent.iloc[-1]
    ends = pairs.pivot_table(index="label", columns="context", values=gain, sort=False)
    fell = ends.reindex(columns=[context, spent.index[-1]]).dropna() if spent.index[-1] > context else ends[:0]

    def growth(kind: str) -> float:
        return float(last[kind, "bf16"] / here[kind, "bf16"])

    return paragraph(
        say(
            "At {label}, context {context}, matmuls take {full:ms} in fp32 and {low:ms} in bf16 ({gain:times}); "
            "all the rest, autocast's casts included, takes {rest:ms} and {casts:ms}. So a step gains more, the larger "
            "the share of its matmuls, which grows with the size.",
            label=select(pairs, size=size)["label"].iloc[0],
            context=context,
            full=here["matmuls", "fp32"],
            low=here["matmuls", "bf16"],
            gain=here["matmuls", "fp32"] / here["matmuls", "bf16"],
            rest=here["rest", "fp32"],
            casts=here["rest", "bf16"],
        ),
        say(
            "From context {context} to {long} the gain falls (@fig-precision_context) at {fell} of {sizes}: work on "
            "the scores (softmax, mask, casts) grows with the context's square, so the rest takes {rest:times} as "
            "long, matmuls {matmuls:times}.",
            context=context,
            long=int(spent.index[-1]) if len(fell) else None,
            fell=int((fell.iloc[:, -1] < fell.iloc[:, 0]).sum()) if len(fell) else None,
            sizes=count(len(fell), "size"),
            rest=growth("rest"),
            matmuls=growth("matmuls"),
        ),
    )


def kinds_table(profile: DataFrame, size: str) -> list[Captioned]:
    """Matmuls and the rest by context, in both precisions."""
    spent = matmul_times(profile, size)
    if not len(spent):
        return []
    columns = [(kind, name) for kind in ("matmuls", "rest") for name in PRECISIONS]
    body = [[str(context), *(f"{row[column]:.1f}" for column in columns)] for context, row in spent.iterrows()]
    table = Table(["context", *PRECISIONS * 2], body, groups=[("", 1), ("matmuls", 2), ("the rest", 2)])
    return [Captioned(table, "Milliseconds of kernels in forward and backward of the largest model, by context.")]
