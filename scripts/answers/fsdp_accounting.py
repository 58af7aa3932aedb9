"""Answers to `fsdp_accounting`: what sharding saves, and whether weights arrive in time, expected and measured."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy import isnan, nan
from pandas import DataFrame, Series

from cs336_systems.accounting.fsdp import waiting_seconds
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.accounting.transformer import adamw_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.parallel.limits import AHEAD
from cs336_systems.sizes import parse_size
from scripts.rendering.markup import Table, significant
from scripts.views.comparison import OWN, cells_of, contenders, device_bound, marked, ranks_of
from scripts.views.comparison_tables import NONE, Column, contender_table, extremes, fixed, missing, setting
from scripts.views.data import select
from scripts.views.fsdp import (
    OURS,
    PYTORCH,
    SHARDED,
    forward_pass,
    measured_rates,
    sharded,
    tokens_of,
    unsharded,
    whole_weights,
)
from scripts.views.units import memory_unit

NEAR = 0.05
"""Relative difference between a measured saving and the closed form's that counts as agreement."""
MEMORY = {
    "kept": ("closed form", "between steps"),
    "between_steps": ("measured", "between steps"),
    "gradients": ("gradients", "closed forms"),
    "passing": ("passing", "closed forms"),
    "expected_peak": ("closed form", "peak"),
    "peak_memory": ("measured", "peak"),
}
"""The columns of the table of memory, and their titles."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["fsdp"]
    rows = contenders(FullyShardedTraining, table)
    if not len(rows):
        return {"memory": None, "missing": missing(table)}
    kept = with_closed_forms(rows[rows["contender"].isin([FLOOR, *SHARDED]) | (rows["family"] == OWN)])
    unit = memory_unit(MIB * kept["expected_peak"].max())
    return {
        "memory": contender_table(FullyShardedTraining, table.iloc[:0], kept, columns(*unit)),
        "unit": unit[0],
        "s": setting(FullyShardedTraining, table, rows),
        "example": example(kept, unit[1]),
        "saved": saved(kept, unit[1]),
        "in_time": in_time(table, tables["all_reduce"], rows),
    }


def with_closed_forms(rows: DataFrame) -> DataFrame:
    """Rows with what closed forms expect, MiB: kept between steps, gradients, what passes through, and the peak."""
    return rows.join(DataFrame([expected(row) for _, row in rows.iterrows()], index=rows.index) / MIB)


def expected(row: Series) -> dict[str, float]:
    """The closed forms of a contender's memory, bytes; none is known of the reader's own."""
    if row["family"] == OWN:
        return dict.fromkeys(("kept", "gradients", "passing", "expected_peak"), nan)
    step, weights = unsharded(row), whole_weights(row)
    if row["contender"] == FLOOR:
        kept = weights + adamw_bytes(parse_size(row["size"]), int(row["vocab_size"]))
        return {"kept": kept, "gradients": weights, "passing": 0, "expected_peak": step.peak}
    model = sharded(row)
    return {
        "kept": model.weights + model.moments,
        "gradients": model.weights,
        "passing": model.gathered + model.gradients_in_flight,
        "expected_peak": peak_bytes(model, step),
    }


def columns(name: str, unit: int) -> list[Column]:
    """The columns of the table of memory, in a unit of so many bytes."""

    def text(metric: str) -> Callable[[Series], str]:
        return lambda row: fixed(row[metric] * MIB / unit)

    return [Column(title, f"{group} / {name}", text(metric), metric) for metric, (title, group) in MEMORY.items()]


def example(rows: DataFrame, unit: int) -> dict[str, Any]:
    """The state of the smallest model with its whole state and sharded, in a unit of so many bytes."""
    ours = rows[rows["contender"].isin(OURS)]
    row = ours.iloc[0] if len(ours) else rows.iloc[0]
    return {
        "label": row["label"],
        "ranks": int(row["processes"]),
        "whole": 4 * whole_weights(row) / unit,
        "shard": sharded(row).state / unit,
        "passing": (sharded(row).gathered + sharded(row).gradients_in_flight) / unit,
    }


def saved(rows: DataFrame, unit: int) -> dict[str, Any] | None:
    """By how much our peaks are below the floor's, in a unit of so many bytes, and measured over expected.

    In fp32, where activations are the same.
    """
    found = []
    for cell in cells_of(select(rows, precision="fp32")):
        for _, floor in select(cell, contender=FLOOR).iterrows():
            for _, row in cell[cell["contender"].isin(OURS)].iterrows():
                less = float(floor["peak_memory"] - row["peak_memory"])
                share = less / float(floor["expected_peak"] - row["expected_peak"])
                found.append({"cell": f"{row['cell']}, {row['title']}", "saved": less * MIB / unit, "ratio": share})
    table = DataFrame(found, columns=["cell", "saved", "ratio"])
    ratio, sizes = extremes(table, "ratio"), extremes(table, "saved")
    if ratio is None or sizes is None:
        return None
    return {
        "ratio": ratio,
        "saved": [size for size, _ in sizes.values()],
        "near": max(abs(end - 1) for end, _ in ratio.values()) <= NEAR,
    }


def in_time(table: DataFrame, all_reduces: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """Whether all-gathers are done when their units' turn comes: by closed form from measured rates, and measured."""
    found = rows[rows["contender"].isin(SHARDED)]
    found = found.assign(waited=[waited(table, row) for _, row in found.iterrows()])
    body: list[list[str]] = []
    used: dict[str, None] = {}
    expectations = []
    for cell in cells_of(rows):
        floors = select(cell, contender=FLOOR)
        sharding = found.loc[found.index.intersection(cell.index)]
        rates = measured_rates(all_reduces, floors.iloc[0]) if len(floors) else None
        if rates is None or not len(sharding):
            continue
        used[f"{significant(rates.bandwidth / 1e9)} GB/s with {ranks_of(floors.iloc[0])}"] = None
        body.append([marked(cell.iloc[0])])
        for _, row in sharding.iterrows():
            times = sharded(row).forward(tokens_of(row), rates)
            largest = max(times, key=lambda unit: unit.communication)
            first = sum(unit.communication for unit in times[: 1 + AHEAD])
            if not row["host_bound"]:
                expectations.append(bool(waiting_seconds(times) <= first))
            seconds = [largest.compute, largest.communication, waiting_seconds(times)]
            measured = [row["waited"], 100 * row["forward_share"]]
            body.append([row["title"], *(shown(value) for value in [*(1e3 * each for each in seconds), *measured])])
    titles = ["", "compute", "gather", "expected", "measured", "hidden / %"]
    groups = [("", 1), ("largest unit / ms", 2), ("waiting / ms", 2), ("", 1)]
    drawn = bool(found["waited"].notna().any())
    if not drawn:
        body, titles, groups = [line[:4] for line in body], titles[:4], [*groups[:2], ("waiting / ms", 1)]
    told = device_bound(found)
    ours = told[told["contender"].isin(OURS)]
    return {
        "table": Table(titles, body, groups=groups) if body else None,
        "bandwidths": list(used),
        "expected": sum(expectations),
        "cases": len(expectations),
        "hidden": extremes(ours, "forward_share"),
        "theirs": extremes(select(told, contender=PYTORCH), "forward_share"),
        "waited": extremes(ours, "waited"),
        "drawn": drawn,
    }


def shown(value: float) -> str:
    """A number as text."""
    return NONE if isnan(value) else str(significant(value))


def waited(table: DataFrame, row: Series) -> float:
    """Milliseconds in which the device was ready for a unit whose weights were not there, in one forward pass."""
    units = forward_pass(table, row)
    return float((units["begins"] - units["needed"]).sum()) if len(units) else nan
