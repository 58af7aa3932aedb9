"""Planned against measured: how many cells of each grid were measured, and the outcome of the others."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from pandas import DataFrame

from cs336_systems.grids import Job
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import COMMON_UNITS, WHOLE_CELL
from scripts.views.completeness import cells_of, missing_metrics
from scripts.views.data import NOT_RUN

INCOMPLETE = "incomplete"
"""Measured, but without a metric that others of its kind have."""
OUTCOMES = ["ok", INCOMPLETE, "oom", "skipped", "failed", NOT_RUN]
UNPLANNED = "unplanned"
NO_GRID = "–"
"""Placeholder for the grid of unplanned cells."""


def cover(plan: Plan, tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per grid: experiment, grid, planned cells, and cells of each outcome; one for unplanned cells."""
    return DataFrame(row for name in plan.jobs for row in cover_experiment(plan, name, tables[name]))


def cover_experiment(plan: Plan, experiment: str, table: DataFrame) -> list[dict[str, Any]]:
    """The rows of `cover` for one experiment, from the table of all that was measured."""
    counts: dict[str, Counter[str]] = {}
    outcomes = cell_outcomes(experiment, table)
    for job in plan.jobs[experiment].values():
        counter = counts.setdefault(job.grid, Counter())
        counter.update(outcomes.pop(dataclasses.astuple(cell), NOT_RUN) for cell in job.cells)
    if outcomes:
        counts[NO_GRID] = Counter({UNPLANNED: len(outcomes)})
    return [
        {"experiment": experiment, "grid": grid, "planned": counter.total() - counter[UNPLANNED]}
        | {outcome: counter[outcome] for outcome in [*OUTCOMES, UNPLANNED]}
        for grid, counter in counts.items()
    ]


def cell_outcomes(experiment: str, table: DataFrame) -> dict[tuple[Any, ...], str]:
    """Status of each cell of a table, by its parameters: the status of the whole cell's row, or ok if it is complete.

    If all of its metrics were lost individually, it is the first one's.
    """
    whole: dict[tuple[Any, ...], str] = {}
    single: dict[tuple[Any, ...], list[str]] = {}
    for cell, metric, status in zip(cells_of(experiment, table), table["metric"], table["status"], strict=True):
        if metric == WHOLE_CELL:
            whole[cell] = status
        else:
            single.setdefault(cell, []).extend([status] if metric not in COMMON_UNITS else [])
    parts = {cell: "ok" if "ok" in statuses or not statuses else statuses[0] for cell, statuses in single.items()}
    incomplete = [cell for cell in missing_metrics(experiment, table) if parts[cell] == "ok"]
    return parts | dict.fromkeys(incomplete, INCOMPLETE) | whole


def losses(plan: Plan, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Why cells or single metrics have no number.

    One row per experiment, metric, status and reason, with the number of cells.
    """
    why_not_run = reasons(plan)
    lost: list[tuple[str, ...]] = []
    for experiment, jobs in plan.jobs.items():
        table = tables[experiment]
        lost += lost_rows(experiment, table)
        measured = set(cells_of(experiment, table))
        for job in jobs.values():
            why = why_not_run(job)
            missing = sum(dataclasses.astuple(cell) not in measured for cell in job.cells)
            lost += [(experiment, WHOLE_CELL, NOT_RUN, why)] * missing
    alike = ["experiment", "metric", "status", "reason"]
    return DataFrame(lost, columns=alike).groupby(alike, sort=False).size().rename("cells").reset_index()


def lost_rows(experiment: str, table: DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Experiment, metric, status and message of what was not measured; one row for a cell without any metric."""
    outcomes = cell_outcomes(experiment, table)
    columns = (table[name] for name in ("metric", "status", "message"))
    for cell, metric, status, message in zip(cells_of(experiment, table), *columns, strict=True):
        if status != "ok" and cell in outcomes:
            whole = outcomes[cell] not in ("ok", INCOMPLETE)
            yield experiment, WHOLE_CELL if whole else metric, status, message
            if whole:
                del outcomes[cell]


def reasons(plan: Plan) -> Callable[[Job], str]:
    """Why a job has no rows: no cell fits; or for recorded results, the reason in `not_measured.yaml` next to them, by
    the GPUs that it needs.
    """
    path = plan.raw.with_name("not_measured.yaml")
    notes = yaml.safe_load(path.read_text(encoding="utf-8")) if plan.recorded and path.exists() else {}
    return lambda job: plan.too_large(job) or notes.get(plan.gpus_of(job)) or plan.obstacle(job) or NOT_RUN


def with_reasons(plan: Plan, tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The tables by experiment; an empty table stores the reason, for `not_measured`."""
    why_not_run = reasons(plan)
    annotated = dict(tables)
    for name, table in tables.items():
        if not len(table):
            annotated[name] = table.copy()
            annotated[name].attrs[NOT_RUN] = next(map(why_not_run, plan.jobs[name].values()), NOT_RUN)
    return annotated
