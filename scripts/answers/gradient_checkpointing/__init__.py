"""Answers to `gradient_checkpointing`: the strategy of least memory, and the best segment length by measurement."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.checkpointing import best_segment
from cs336_systems.accounting.units import MIB
from scripts.answers.gradient_checkpointing.strategies import strategy_answers
from scripts.rendering.markup import Table, Tile, Typst, escape, fixed, mean_std, times
from scripts.views.closed_forms import block_of, step_of
from scripts.views.data import one_model, ratio, reason, select, statistic
from scripts.views.units import memory_unit

MEMORY = {"saved": "saved_for_backward", "before backward": "memory_before_backward", "peak": "peak_memory"}
"""Columns of the table and their metrics."""
PEAKS = {"peak_forward": "forward", "peak_backward": "backward", "peak_optimizer": "optimizer"}
"""The phases of which peaks are recorded."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = one_model(tables["checkpointing"])
    # One row of each cell, plain attention first: what its parameters are.
    cells = [cell for _, cell in table.drop_duplicates(["attention", "segment"]).iterrows()]
    cells.sort(key=lambda cell: (cell["attention"] != "plain", cell["segment"]))
    blocks = {cell["attention"]: block_of(cell) for cell in cells}
    return {
        **strategy_answers(blocks),
        "results": results(table, cells) if len(select(table, metric="step")) else None,
    }


def tiles(found: Mapping[str, Any]) -> list[Tile]:
    """The largest saving by checkpointing among the measured models."""
    cases = [case for case in found["results"]["cases"] if case["saving"]] if found["results"] else []
    if not cases:
        return []
    case = max(cases, key=lambda case: case["saving"])
    where = escape(f"{case['attention']} attention, at {times(case['slowdown'])} the step time")
    meaning = Typst(f"smaller peak memory by activation checkpointing ({where})")
    return [Tile(times(case["saving"]), meaning, "saving by checkpointing")]


def results(table: DataFrame, cells: list[Series]) -> dict[str, Any]:
    """(b) What was measured, for each attention."""
    steps = select(table, metric="step")
    unit, size = memory_unit(max(step_of(cell).peak for cell in cells))
    cases = [case(select(table, attention=name)) for name in dict.fromkeys(cell["attention"] for cell in cells)]
    return {
        "label": cells[0]["label"],
        "context": int(cells[0]["context"]),
        "batch": int(cells[0]["batch_size"]),
        "precision": cells[0]["precision"],
        "n": int(steps["n"].max()),
        "unit": unit,
        "size": size / MIB,
        "table": results_table(table, cells, unit, size / MIB),
        "compared": any(case["without_step"] for case in cases),
        "cases": cases,
        "deviation": max((error for cell in cells if (error := deviation(table, cell)) is not None), default=None),
        "rival": rival(cases),
        "phases": peak_phases(table),
    }


def of_cell(table: DataFrame, cell: Series, metric: str, column: str = "mean") -> float | None:
    """A statistic of a metric of a row's cell."""
    return statistic(table, column, metric=metric, attention=cell["attention"], segment=cell["segment"])


def deviation(table: DataFrame, cell: Series) -> float | None:
    """How far a cell's measured peak is from the closed form, relative to this."""
    peak = of_cell(table, cell, "peak_memory")
    return None if peak is None else abs(peak / (step_of(cell).peak / MIB) - 1)


def peak_phases(table: DataFrame) -> dict[str, int]:
    """In how many cells the peak is in each phase of the step, the most frequent first."""
    peaks = table[table["metric"].isin(PEAKS) & (table["status"] == "ok")]
    highest = peaks.loc[peaks.groupby(["attention", "segment"])["mean"].idxmax()]
    return {PEAKS[str(metric)]: int(count) for metric, count in highest["metric"].value_counts().items()}


def results_table(table: DataFrame, cells: list[Series], unit: str, size: float) -> Table:
    """Memory, in a unit of so many MiB, and time of every cell."""
    closed = [step_of(cell).peak / MIB for cell in cells]
    columns: dict[str, list[str]] = {}
    for title, metric in MEMORY.items():
        values = [of_cell(table, cell, metric) for cell in cells]
        if any(values):
            columns[f"{title} / {unit}"] = fixed([value / size if value else None for value in values])
    columns[f"closed form / {unit}"] = fixed([value / size for value in closed])
    medians = [of_cell(table, cell, "step", "median") for cell in cells]
    spreads = [of_cell(table, cell, "step", "std") for cell in cells]
    columns["step / ms"] = mean_std(list(zip(medians, spreads, strict=True)))
    columns["against none"] = [
        f"{gain:.2f}×" if (gain := slowdown(select(table, attention=cell["attention"]), cell["segment"])) else "–"
        for cell in cells
    ]
    body = []
    for index, cell in enumerate(cells):
        why = reason(table, attention=cell["attention"], segment=cell["segment"])
        texts = [column[index] or why for column in columns.values()]
        if medians[index] is None:
            texts[-1] = why
        body.append([cell["attention"], name_of(cell["segment"]), *texts])
    return Table(["attention", "segment", *columns], body, text_columns=2)


def slowdown(table: DataFrame, segment: int) -> float | None:
    """Median step time of a segment length over that without checkpointing, with one attention."""
    return ratio(*(statistic(table, "median", metric="step", segment=number) for number in (segment, 0)))


def name_of(segment: int) -> str:
    """A segment length in words."""
    return str(segment) if segment else "none"


def case(table: DataFrame) -> dict[str, Any]:
    """One attention: the best segment length, its neighbours, what it costs, and what the closed form says."""
    lengths = sorted(set(table["segment"]) - {0})
    peaks = {length: statistic(table, "mean", metric="peak_memory", segment=length) for length in lengths}
    fitting = {length: peak for length, peak in peaks.items() if peak}
    steps = {length: statistic(table, "median", metric="step", segment=length) for length in lengths}
    timed = sorted((step, length) for length, step in steps.items() if step)
    best = min(fitting, key=lambda length: fitting[length], default=None)
    row = table.iloc[0]
    closed_best = best_segment(block_of(row), int(row["vocab_size"]))
    closed = replace(step_of(row), segment=closed_best)
    without = statistic(table, "mean", metric="peak_memory", segment=0)
    baseline = statistic(table, "median", metric="step", segment=0)
    losses = select(table, status="oom")["segment"]
    return {
        "attention": row["attention"],
        "best": best,
        "peak": peaks.get(best) if best else None,
        "step": steps.get(best) if best else None,
        "shorter": next(((k, peaks[k]) for k in reversed(lengths) if best and k < best), None),
        "longer": next(((k, peaks[k]) for k in lengths if best and k > best), None),
        "without": without,
        "without_step": baseline,
        "saving": ratio(without, peaks.get(best) if best else None),
        "slowdown": slowdown(table, best) if best else None,
        "closed_best": closed_best,
        "closed_peak": closed.peak / MIB,
        "in_first_segment": closed.peak_block is not None and closed.peak_block < closed_best,
        "state": closed.state / MIB,
        "out_of_memory": [name_of(segment) for segment in sorted(set(losses))],
        "quickest": timed[0] if timed else None,
        "slowest": timed[-1] if timed else None,
        "lengths": len(timed),
        "cost": tuple(ratio(step, baseline) for step, _ in (timed[0], timed[-1])) if timed and baseline else None,
    }


def rival(cases: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Flash attention without checkpointing against plain attention at its best, where both were measured."""
    found = {case["attention"]: case for case in cases}
    plain, flash = found.get("plain"), found.get("flash")
    if not plain or not flash:
        return None
    compared = {
        "plain": plain["peak"],
        "flash": flash["without"],
        "flash_best": flash["peak"],
        "flash_best_step": flash["step"],
        "plain_step": plain["step"],
        "flash_step": flash["without_step"],
    }
    return compared if all(compared.values()) else None
