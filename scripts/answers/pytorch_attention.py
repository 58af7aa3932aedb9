"""Answers to `pytorch_attention`: plain attention by itself, its time and its memory."""

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.units import FP32_BYTES, MIB
from scripts.rendering.answer import Answer, Answers, Captioned, Facts, Tables, say
from scripts.rendering.markup import Table
from scripts.views.compiled_attention import TIMES, attention_cells, grid_table
from scripts.views.data import first, last, one, select


def answers(tables: Tables) -> Answers:
    """The section's answers."""
    table = select(tables["attention"], compiled=False)
    cells = attention_cells(table, "mean").rename(columns={"memory_before_backward": "kept", "peak_memory": "peak"})
    return {
        "times": times(table, cells),
        "memory": memory(table, cells),
        "batch": int(table["batch_size"].iloc[0]) if len(table) else None,
        "steps": int(table["steps"].max()) if len(table) else None,
        "precision": str(table["precision"].iloc[0]) if len(table) else None,
    }


def times(table: DataFrame, cells: DataFrame) -> Answer:
    """The times of its passes, and where they run out of memory."""
    lost = first(table[table["status"] == "oom"].sort_values(["sequence", "d"]))
    facts = Facts(lost=lost, cell=last(cells))
    return Answer(
        asked="Times and limits",
        verdict=facts.say("Plain attention first runs out of memory at {lost[sequence]} tokens, d = {lost[d]}.")
        or facts.say("Plain attention fits in memory at all measured lengths, up to {cell[sequence]} tokens."),
        more=facts.say(
            "At {cell[sequence]} tokens, d = {cell[d]}, forward takes {cell[forward]:ms}, "
            "backward {cell[backward]:ms}.",
            "Both passes together take {growth:times} as long as at half the length.",
            growth=growth(cells),
        ),
        results=Captioned(
            grid_table(table, TIMES | {"memory before backward / MiB": "memory_before_backward"}),
            "Means for plain attention by head dimension.",
            legend={"*": "*: host-bound (device busy for less than 90 % of the pass)"},
        ),
    )


def growth(cells: DataFrame) -> float | None:
    """Time of both passes in the last cell over the time at half its tokens; None where one is host-bound."""
    longest = cells["sequence"].max()
    own = select(cells, d=select(cells, sequence=longest)["d"].max(), host_bound=False)
    half, whole = (one(own, sequence=sequence) for sequence in (longest // 2, longest))
    return None if half is None or whole is None else float(whole["time"] / half["time"])


def memory(table: DataFrame, cells: DataFrame) -> Answer:
    """The memory kept for the backward pass, and how to avoid it."""
    known = cells[cells["kept"].notna()]
    if not len(known):
        why = "Not measured: memory is counted only on GPUs." if len(cells) else "Not measured on this machine."
        return Answer("Memory", missing=why)
    lost = first(table[table["status"] == "oom"].sort_values(["sequence", "d"]))
    cell = known.iloc[-1] if lost is None else lost
    batch, sequence, d = (int(cell[name]) for name in ("batch_size", "sequence", "d"))
    constant = float((known["kept"] - [closed_form(row) for _, row in known.iterrows()]).min())
    expected = plain_bytes_before_backward(batch, sequence, d) / MIB
    own = select(known, d=d)
    measured = one(own, sequence=sequence)
    facts = Facts(measured=measured, d=d, expected=expected, before=last(own[:-1]), end=last(own), n=sequence)
    return Answer(
        asked="Memory",
        verdict=facts.say(
            "At {n} tokens, d = {d}, the probabilities take {share:percent} of the memory in use before backward.",
            share=FP32_BYTES * batch * sequence**2 / MIB / expected,
        ),
        more=facts.say(
            "From {before[sequence]} to {end[sequence]} tokens, this memory grows by a factor of "
            "{end[kept] / before[kept]:sig}, to {end[kept]:gib}.",
            "FlashAttention never stores scores or probabilities.",
        ),
        results=Captioned(
            account(batch, sequence, d, constant, measured),
            say("Live tensors of plain attention in fp32 at {n} tokens, d = {d}.", n=sequence, d=d),
        ),
        reason=say(
            "The constant {constant:MiB}, likely cuBLAS’s workspaces, is in use at every size.",
            constant=constant if constant > 0 else None,
        ),
    )


def closed_form(cell: Series) -> float:
    """MiB kept by a cell for its backward pass."""
    return plain_bytes_before_backward(int(cell["batch_size"]), int(cell["sequence"]), int(cell["d"])) / MIB


def account(batch: int, sequence: int, d: int, constant: float, measured: Series | None) -> Table:
    """The memory of one configuration, item by item, between the passes and at the peak."""
    scores, vectors = (FP32_BYTES * batch * sequence * width / MIB for width in (sequence, d))
    forms = [form(batch, sequence, d) / MIB + constant for form in (plain_bytes_before_backward, plain_peak_bytes)]
    body = [
        ("score-sized tensors", f"{scores:.1f}", "1", "4"),
        ("Q, K, V, O and gradients", f"{vectors:.1f}", "5", "6"),
        *([("constant", f"{constant:.1f}", "1", "1")] if constant > 0 else []),
        ("total / MiB", "", *(f"{size:.1f}" for size in forms)),
        *([] if measured is None else [("measured / MiB", "", f"{measured['kept']:.1f}", f"{measured['peak']:.1f}")]),
    ]
    return Table(["", "each / MiB", "before backward", "at the peak"], list(map(list, body)))
