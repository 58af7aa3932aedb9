"""Planned against measured: how many cells of each grid were measured, and what became of the others."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.measure.record import WHOLE_CELL
from cs336_systems.plan import Plan, make_plan
from scripts.data import load
from scripts.log import log_to

OUTCOMES = ["ok", "oom", "skipped", "failed", "not run"]


def cover(plan: Plan, tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row a grid: experiment, grid, planned cells, and cells of each outcome."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for experiment, jobs in plan.jobs.items():
        outcomes = cell_outcomes(tables[experiment])
        for job in jobs.values():
            counter = counts.setdefault((experiment, job.grid), Counter())
            counter.update(outcomes.get(dataclasses.astuple(cell), "not run") for cell in job.cells)
    return DataFrame(
        {"experiment": experiment, "grid": grid, "planned": counter.total()}
        | {outcome: counter[outcome] for outcome in OUTCOMES}
        for (experiment, grid), counter in counts.items()
    )


def cell_outcomes(table: DataFrame) -> dict[tuple[Any, ...], str]:
    """Status of each cell of a table, by its parameters: that of the row for the whole cell, or ok."""
    columns = list(table.columns)
    parameters = columns[columns.index("experiment") + 1 : columns.index("metric")]
    outcomes: dict[tuple[Any, ...], str] = {}
    for row in table.itertuples(index=False):
        cell = tuple(getattr(row, name) for name in parameters)
        if row.metric == WHOLE_CELL:
            outcomes[cell] = row.status
        else:
            outcomes.setdefault(cell, "ok")
    return outcomes


def write_coverage(config: Mapping[str, Any], tables: Mapping[str, str], output: str) -> None:
    """Write the coverage of the tables at the given paths."""
    loaded = {name: load(name, path) for name, path in tables.items()}
    cover(make_plan(config), loaded).to_csv(output, index=False)


if __name__ == "__main__":
    with log_to(snakemake.log[0]):
        write_coverage(config=snakemake.config, tables=dict(snakemake.input.items()), output=snakemake.output[0])
