"""Answers to `fsdp_accounting`: what sharding saves, and whether weights arrive in time, expected and measured."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy import nan
from pandas import DataFrame, Series, isna

from cs336_systems.accounting.fsdp import waiting_seconds
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.accounting.transformer import adamw_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.parallel.limits import AHEAD, REDUCTIONS
from cs336_systems.sizes import parse_size
from scripts.rendering.answer import NOTHING, Answer, Captioned, count, paragraph, say, tell
from scripts.rendering.markup import NOT_MEASURED, Table, significant, with_unit
from scripts.views.comparison import OWN, cells_of, contenders, device_bound, fastest, marked
from scripts.views.comparison_tables import NONE, Column, contender_table, fixed, missing
from scripts.views.data import measured_machine, select
from scripts.views.fsdp import OURS, SHARDED, by_block, measured_rates, sharded, tokens_of, unsharded, whole_weights
from scripts.views.units import memory_unit

MEMORY = {
    "kept": ("closed form", "between steps"),
    "between_steps": ("measured", "between steps"),
    "passing": ("closed form", "passing"),
    "expected_peak": ("closed form", "peak"),
    "peak_memory": ("measured", "peak"),
}
"""The columns of the table of memory, and their titles."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, and how many units pass through whole."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    why = f"{NOT_MEASURED.capitalize()}{missing(table).removeprefix(NOT_MEASURED)}."
    return {
        "saving": saving(table, rows, why),
        "in_time": in_time(table, tables["all_reduce"], rows, why),
        "gathered": 1 + AHEAD,
        "reduced": 1 + REDUCTIONS,
    }


def with_closed_forms(rows: DataFrame) -> DataFrame:
    """Rows with what closed forms expect, MiB: kept between steps, what passes through, and the peak."""
    return rows.join(DataFrame([expected(row) for _, row in rows.iterrows()], index=rows.index) / MIB)


def expected(row: Series) -> dict[str, float]:
    """The closed forms of a contender's memory, bytes; none is known of the reader's own."""
    if row["family"] == OWN:
        return dict.fromkeys(("kept", "passing", "expected_peak"), nan)
    step, weights = unsharded(row), whole_weights(row)
    if row["contender"] == FLOOR:
        kept = weights + adamw_bytes(parse_size(row["size"]), int(row["vocab_size"]))
        return {"kept": kept, "passing": 0, "expected_peak": step.peak}
    model = sharded(row)
    return {
        "kept": model.weights + model.moments,
        "passing": model.gathered + model.gradients_in_flight,
        "expected_peak": peak_bytes(model, step),
    }


def saving(table: DataFrame, rows: DataFrame, why: str) -> Answer:
    """(a) What sharding saves between steps and at the peak, in the first fp32 cell: there activations are the same."""
    asked = "(a) Memory saved"
    kept = rows[rows["contender"].isin([FLOOR, *SHARDED]) | (rows["family"] == OWN)]
    if not len(kept):
        return Answer(asked=asked, verdict=NOTHING, missing=why)
    kept = with_closed_forms(kept)
    unit, size = memory_unit(MIB * kept["expected_peak"].max())
    cell = next(iter(cells_of(select(kept, precision="fp32"))), kept.iloc[:0])
    whole, own = fastest(cell, [FLOOR]), fastest(cell, OURS)

    def less(column: str) -> float:
        return nan if whole is None or own is None else float(whole[column] - own[column]) * MIB / size

    told = device_bound(kept)
    shown = (told if len(told) else kept).pipe(lambda found: found[found["processes"] == found["processes"].min()])
    machine = measured_machine({"": table})
    caption = (
        f"Memory per rank with whole and sharded state on {machine}: weights and moments between steps, what passes "
        "through whole, and the peak; measured once, on rank 0. In bf16 the closed form of the peak is an upper limit, "
        "since it counts autocast's activations."
    )
    return Answer(
        asked=asked,
        verdict=say(
            f"FSDP should save {{kept:{unit}}} per rank between steps and {{peak}} at the peak.",
            kept=less("kept"),
            # Of a tiny model, the units that pass through whole outweigh what is sharded.
            peak=with_unit(less("expected_peak"), unit) if less("expected_peak") > 0 else "nothing",
        ),
        more=say(
            f"It saves {{kept:{unit}}} and {{peak:{unit}}} ({{title}}, {{cell}}).",
            kept=less("between_steps"),
            peak=less("peak_memory"),
            title="" if own is None else own["title"],
            cell="" if own is None else own["cell"],
        ),
        missing="Not measured: no fp32 cell has both our FSDP and training without sharding.",
        evidence=[Captioned(memory_table(table, shown, unit, size), caption)],
        details=[Captioned(memory_table(table, kept, unit, size), f"The same in every cell, on {machine}.", long=True)],
    )


def memory_table(table: DataFrame, rows: DataFrame, unit: str, size: int) -> Table:
    """Closed forms and measured memory, cell by cell."""

    def text(metric: str) -> Callable[[Series], str]:
        return lambda row: fixed(row[metric] * MIB / size)

    columns = [Column(title, f"{group} / {unit}", text(metric), metric) for metric, (title, group) in MEMORY.items()]
    return contender_table(FullyShardedTraining, table.iloc[:0], rows, columns) or Table([], [])


def in_time(table: DataFrame, all_reduces: DataFrame, rows: DataFrame, why: str) -> Answer:
    """(b) Whether weights are there when their block's turn comes, in the first device-bound cell that was profiled."""
    passes = rows[rows["contender"].isin(SHARDED) & rows["forward_length"].notna()]
    told = device_bound(passes)
    own = fastest(next(iter(cells_of(told)), told), OURS)
    blocks = by_block(table, own) if own is not None else DataFrame(columns=["late", "pause"])
    late = blocks[blocks["late"] > 0]
    machine = measured_machine({"": table})
    values: dict[str, Any] = {
        "late": count(len(late), "block"),
        "blocks": len(blocks),
        "wait": float(late["late"].sum()),
        "length": float(own["forward_length"]) if own is not None else None,
    }
    counts = "of {blocks}, by {wait:ms} in a forward pass of {length:ms}."
    rates = measured_table(table, all_reduces, told)
    every = measured_table(table, all_reduces, passes)
    caption = (
        f"The largest unit and the waiting for weights in a forward pass on {machine}: by closed form from measured "
        "rates (C: the forward pass without communication; W: bus bandwidth of the fastest all-reduce), and in one "
        "profiled pass on rank 0, with all pauses before units and the share of all-gather time beside which kernels "
        "compute."
    )
    skipped = table[(table["metric"] == "device_busy") & (table["status"] == "skipped")]["message"]
    return Answer(
        asked="(b) In time",
        missing=why
        if not len(rows)
        else f"Not measured: {skipped.iloc[0]}."
        if len(skipped)
        else "Not measured: no device-bound forward pass was profiled.",
        verdict=tell(
            set(late.index) <= set(range(1 + AHEAD)),
            say("Yes: weights come late only for {late} " + counts, **values),
            say("No: weights come late for {late} " + counts, **values),
        )
        if len(blocks)
        else NOTHING,
        more=paragraph(
            NOTHING if own is None else say("Measured with _{title}_, {cell}.", title=own["title"], cell=own["cell"]),
            say(
                "It cannot be told with {cells:listing}: host-bound.",
                cells=list(passes[passes["host_bound"].astype(bool)]["cell"].unique()),
            ),
        ),
        evidence=["fsdp_gathers", *([Captioned(rates, caption)] if rates else [])],
        reason=pauses(table, told),
        details=[Captioned(every, f"The same in every profiled cell, on {machine}.", long=True)] if every else [],
    )


def pauses(table: DataFrame, told: DataFrame) -> Any:
    """The contender that pauses longest, and how much of that is for weights."""
    found = [
        (float(each["pause"].sum()), float(each["late"].sum()), row)
        for _, row in told.iterrows()
        if len(each := by_block(table, row))
    ]
    if not found:
        return NOTHING
    first = say("The first weights always come late, as no compute runs before them.")
    pause, late, row = max(found, key=lambda each: each[0])
    if late > pause / 2:
        return first
    longest = say(
        "The longest pauses, {pause:ms} with _{title}_ ({cell}), wait for weights for {late:ms} only; for the rest the "
        "weights are there, but work has not begun.",
        pause=pause,
        late=late,
        title=row["title"],
        cell=row["cell"],
    )
    return paragraph(first, longest)


def measured_table(table: DataFrame, all_reduces: DataFrame, rows: DataFrame) -> Table | None:
    """Closed forms and measured waiting, cell by cell."""
    every = contenders(FullyShardedTraining, table)
    body: list[list[str]] = []
    for cell in cells_of(rows):
        floors = select(every, cell=cell["cell"].iloc[0], contender=FLOOR)
        rates = measured_rates(all_reduces, floors.iloc[0]) if len(floors) else None
        where = f"; W = {significant(rates.bandwidth / 1e9)} GB/s" if rates else ""
        body.append([f"{marked(cell.iloc[0])}{where}"])
        for _, row in cell.iterrows():
            numbers = [nan] * 3
            if rates:
                times = sharded(row).forward(tokens_of(row), rates)
                largest = max(times, key=lambda unit: unit.communication)
                numbers = [1e3 * each for each in (largest.compute, largest.communication, waiting_seconds(times))]
            blocks = by_block(table, row)
            waits = [float(blocks[name].sum()) if len(blocks) else nan for name in ("late", "pause")]
            body.append([row["title"], *(shown(value) for value in [*numbers, *waits, 100 * row["forward_share"]])])
    titles = ["", "compute", "gather", "closed form", "measured", "all", "hidden / %"]
    groups = [("", 1), ("largest unit / ms", 2), ("waiting / ms", 2), ("pauses / ms", 1), ("all-gathers", 1)]
    return Table(titles, body, groups=groups) if body else None


def shown(value: float) -> str:
    """A number as text."""
    return NONE if isna(value) else str(significant(value))
