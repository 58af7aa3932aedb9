"""Answers to `pytorch_attention`: plain attention by itself, its time and its memory."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.attention import plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.attention import Attention
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import Table, Typst, fixed_point, mean_std
from scripts.views.cells import side_by_side
from scripts.views.compiled_attention import grid_table
from scripts.views.data import ratio, reason, select, statistic
from scripts.views.steps import HOST_BOUND

GIB = 1024
"""MiB in a GiB."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    table = select(tables["attention"], compiled=False)
    cells = plain_cells(table)
    return {
        "times": times(table, cells),
        "memory": memory(table, cells),
        "batch": int(table["batch_size"].iloc[0]) if len(table) else None,
        "steps": int(table["steps"].max()) if len(table) else None,
        "precision": str(table["precision"].iloc[0]) if len(table) else None,
    }


def plain_cells(table: DataFrame) -> DataFrame:
    """One row per measured cell, by `sequence` and `d`.

    Columns: the means `forward` and `backward` and `time`, their sum, ms; `host_bound`; `kept`, the memory in use
    before the backward pass, and `peak`, MiB, NaN where not measured.
    """
    wanted = ["forward", "backward", "device_busy", "memory_before_backward", "peak_memory"]
    cells = side_by_side(table, Attention).reindex(columns=wanted).reset_index().sort_values(["sequence", "d"])
    cells["time"] = cells["forward"] + cells["backward"]
    cells["host_bound"] = cells["device_busy"] < HOST_BOUND * cells["time"]
    return cells.rename(columns={"memory_before_backward": "kept", "peak_memory": "peak"})


def times(table: DataFrame, cells: DataFrame) -> Answer:
    """How long its passes take, and where they run out of memory."""
    lost = sorted(set(zip(*(table[table["status"] == "oom"][name] for name in ("sequence", "d")), strict=True)))
    longest = int(cells["sequence"].max()) if len(cells) else None
    paced = cells.groupby("sequence")["host_bound"].all()
    return Answer(
        asked="Times and limits",
        verdict=say(
            "Plain attention runs out of memory first at {n} tokens, d = {d}.", n=int(lost[0][0]), d=int(lost[0][1])
        )
        if lost
        else say("Nothing runs out of memory up to {longest} tokens.", longest=longest),
        more=paragraph(
            doubling(cells),
            widening(cells),
            say(
                "Up to {most} tokens it is host-bound.",
                most=int(paced[paced].index.max()) if paced.any() else None,
            ),
        ),
        evidence=[
            Captioned(
                grid_table(table, [False]),
                "Mean times of plain attention by head dimension"
                + ("; a star: host-bound." if cells["host_bound"].any() else "."),
            )
        ]
        if len(cells)
        else [],
        details=["attention_length", Captioned(full_table(table), "Every shape, mean ± std.", long=True)],
    )


def doubling(cells: DataFrame) -> Typst:
    """What the last step to a longer sequence costs."""
    lengths = sorted(set(cells[~cells["host_bound"]]["sequence"]))[-2:]
    if len(lengths) < 2:
        return NOTHING
    short, long = (select(cells, sequence=length).set_index("d")["time"] for length in lengths)
    gains = (long / short).dropna()
    return say(
        "From {short} to {long} tokens its time grows {gain:times} (median of {cells}).",
        short=int(lengths[0]),
        long=int(lengths[1]),
        gain=gains.median(),
        cells=count(len(gains), "head dimension"),
    )


def widening(cells: DataFrame) -> Typst:
    """What a larger head dimension costs at the longest sequence."""
    there = select(cells[~cells["host_bound"]], sequence=cells["sequence"].max())
    if len(there) < 2:
        return NOTHING
    narrow, wide = there.iloc[0], there.iloc[-1]
    return say(
        "There d = {wide} takes {gain:times} as long as d = {narrow}.",
        wide=int(wide["d"]),
        narrow=int(narrow["d"]),
        gain=wide["time"] / narrow["time"],
    )


def full_table(table: DataFrame) -> Table:
    """Every shape with the spread of its times and its memory."""
    shapes = sorted(set(zip(table["sequence"], table["d"], strict=True)))
    rows = [select(table, sequence=sequence, d=d) for sequence, d in shapes]
    passes = [
        mean_std([(statistic(own, "mean", metric=name), statistic(own, "std", metric=name)) for own in rows])
        for name in ("forward", "backward")
    ]
    memory_columns = [
        [fixed_point(statistic(own, "mean", metric=name)) for own in rows]
        for name in ("memory_before_backward", "peak_memory")
    ]
    body = [
        [*map(str, shape), *(text or reason(own) for text in texts)]
        for shape, own, *texts in zip(shapes, rows, *passes, *memory_columns, strict=True)
    ]
    header = ["sequence", "d", "forward / ms", "backward / ms", "in use / MiB", "peak / MiB"]
    return Table(header, body, text_columns=0)


def memory(table: DataFrame, cells: DataFrame) -> Answer:
    """What is kept for the backward pass, and what would remove it."""
    asked = "Memory"
    known = cells[cells["kept"].notna()]
    if not len(known):
        why = (
            "Not measured: only a GPU’s allocator counts its memory." if len(cells) else "Not measured on this machine."
        )
        return Answer(asked, NOTHING, missing=why)
    lost = table[table["status"] == "oom"].sort_values(["sequence", "d"])
    cell = lost.iloc[0] if len(lost) else known.iloc[-1]
    batch, sequence, d = (int(cell[name]) for name in ("batch_size", "sequence", "d"))
    constant = float((known["kept"] - known.apply(closed_form, axis=1)).min())
    measured = known[(known["sequence"] == sequence) & (known["d"] == d)]
    scores, expected = FP32_BYTES * batch * sequence**2 / MIB, plain_bytes_before_backward(batch, sequence, d) / MIB
    return Answer(
        asked=asked,
        verdict=say(
            "At {n} tokens the scores’ softmax is {share:percent} of what is kept for the backward pass.",
            n=sequence,
            share=scores / expected,
        ),
        more=paragraph(
            say(
                "Of {measured:GiB} in use (d = {d}), the closed form explains {expected:GiB}.",
                measured=measured["kept"].iloc[0] / GIB if len(measured) else None,
                d=d,
                expected=expected / GIB,
            ),
            growth(known, d),
            Typst("FlashAttention never stores it."),
        ),
        evidence=[Captioned(account(batch, sequence, d, constant, measured), account_caption(sequence, d))],
        reason=paragraph(
            tell(
                constant > 0,
                say(
                    "{constant:MiB} more are there at every size: likely cuBLAS’s workspaces.",
                    constant=constant,
                ),
                NOTHING,
            ),
            Typst(
                "At the peak, in the backward pass, four matrices of scores are alive: the softmax’s result, its "
                "gradient, "
                "their product, with which PyTorch’s backward pass of a softmax begins, and the scores’ gradient. What "
                "removes them is never storing scores: compute them tile by tile, normalize along the way, and "
                "recompute "
                "the tiles in the backward pass from each row’s log-sum-exp, one number per query @dao2023."
            ),
        ),
    )


def closed_form(cell: Any) -> float:
    """MiB that a cell keeps for its backward pass."""
    return plain_bytes_before_backward(int(cell["batch_size"]), int(cell["sequence"]), int(cell["d"])) / MIB


def growth(known: DataFrame, d: int) -> Typst:
    """How memory grows over the last two lengths."""
    own = select(known, d=d)
    if len(own) < 2:
        return NOTHING
    short, long = own.iloc[-2], own.iloc[-1]
    return say(
        "What is kept grows {gain:times} from {short} to {long} tokens.",
        gain=ratio(long["kept"], short["kept"]),
        short=int(short["sequence"]),
        long=int(long["sequence"]),
    )


def account(batch: int, sequence: int, d: int, constant: float, measured: DataFrame) -> Table:
    """The memory of one configuration, item by item, between the passes and at the peak."""
    scores, vectors = (FP32_BYTES * batch * sequence * width / MIB for width in (sequence, d))
    kept, peak = plain_bytes_before_backward(batch, sequence, d), plain_peak_bytes(batch, sequence, d)
    body = [
        ["scores-sized tensors", fixed_point(scores), "1", "4"],
        ["Q, K, V, O and gradients", fixed_point(vectors), "5", "6"],
    ]
    if constant > 0:
        body.append(["constant", fixed_point(constant), "1", "1"])
    body.append(["together / MiB", "", *(fixed_point(size / MIB + constant) for size in (kept, peak))])
    if len(measured):
        body.append(["measured / MiB", "", *(fixed_point(measured[name].iloc[0]) for name in ("kept", "peak"))])
    return Table(["", "each / MiB", "before backward", "at the peak"], body)


def account_caption(sequence: int, d: int) -> str:
    """The caption of the account."""
    return f"Memory of plain attention at sequence {sequence}, d = {d}, fp32: how many tensors of each kind are alive."
