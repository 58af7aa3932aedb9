"""What the title page and the last pages say: machine, versions, coverage, self-checks, commands."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.measure.peaks import peak_of
from cs336_systems.plan import Plan
from scripts.coverage import OUTCOMES
from scripts.data import measured_gpu, measured_machine
from scripts.typst import Table

VERSIONS = {
    "gpu": "GPU",
    "gpu_count": "GPUs used",
    "cpu": "processor",
    "driver": "NVIDIA driver",
    "cuda": "CUDA of PyTorch",
    "torch": "PyTorch",
    "triton": "Triton",
    "python": "Python",
    "git_commit": "commit",
    "source_digest": "digests of the measured code",
    "seed": "seed",
}


def answers(tables: Mapping[str, DataFrame], plan: Plan, coverage: DataFrame, checks: DataFrame) -> dict[str, Any]:
    """Values and tables that belong to no one problem."""
    rows = pandas.concat([table for table in tables.values() if len(table)]) if any(map(len, tables.values())) else None
    gpu = measured_gpu(tables)
    commits = sorted(set(rows["git_commit"]) - {""}) if rows is not None else []
    return {
        "machine": measured_machine(tables),
        "label": plan.machine,
        "scale": plan.scale,
        "gpu": gpu,
        "peak": peak_of(gpu),
        "measured_from": min(rows["utc"])[:10] if rows is not None else None,
        "measured_to": max(rows["utc"])[:10] if rows is not None else None,
        "commits": commits,
        "dirty": bool(rows is not None and rows["git_dirty"].eq(True).any()),  # may be None
        "versions": versions_table(rows),
        "cells_planned": int(coverage["planned"].sum()),
        "cells_ok": int(coverage["ok"].sum()),
        "cells_oom": int(coverage["oom"].sum()),
        "coverage": coverage_table(coverage),
        "not_measured": not_measured_table(tables),
        "checks": checks.to_dict("records"),
        "checks_failed": int((checks["outcome"] == "failed").sum()),
        "checks_applicable": int((checks["outcome"] != "not applicable").sum()),
        "jobs": [job for jobs in plan.jobs.values() for job in jobs.values()],
    }


def versions_table(rows: DataFrame | None) -> Table:
    """Hardware and software, every value that occurs in the rows."""
    body = []
    for column, title in VERSIONS.items():
        values = sorted({str(value) for value in rows[column]} - {""}) if rows is not None else []
        body.append([title, ", ".join(values) or "–"])
    return Table(["what", "value"], body, text_columns=2)


def coverage_table(coverage: DataFrame) -> Table:
    """Planned cells and outcomes, a row a grid and a total."""
    counts = ["planned", *OUTCOMES]
    body = [[row["experiment"], row["grid"], *(str(row[name]) for name in counts)] for _, row in coverage.iterrows()]
    body.append(["all", "", *(str(int(coverage[name].sum())) for name in counts)])
    return Table(["experiment", "grid", *counts], body, text_columns=2)


def not_measured_table(tables: Mapping[str, DataFrame]) -> Table | None:
    """Each reason for cells without a measurement, and how many cells it cost."""
    body = []
    for name, table in tables.items():
        rows = table[table["status"] != "ok"]
        for (metric, status, message), group in rows.groupby(["metric", "status", "message"], sort=False):
            body.append([name, metric, status, str(len(group)), message])
    if not body:
        return None
    totals: dict[tuple[str, str, str], tuple[int, str]] = {}
    for name, metric, status, count, message in body:
        seen, first = totals.get((name, metric, status), (0, message))
        totals[name, metric, status] = (seen + int(count), first)
    lines = [[*key, str(count), message] for key, (count, message) in totals.items()]
    return Table(["experiment", "what", "status", "cells", "reason (the first one)"], lines, text_columns=5)
