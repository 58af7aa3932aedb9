"""The contents of the title page and the last pages: machine, versions, coverage, self-checks, commands."""

from collections.abc import Mapping
from typing import Any

import pandas
from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.plan import Plan
from cs336_systems.record.measurement import WALL, WHOLE_CELL
from cs336_systems.record.revisions import is_current
from cs336_systems.sizes import SIZES
from scripts.rendering.answer import count
from scripts.rendering.markup import Table, Typst, finalize
from scripts.views.coverage import OUTCOMES, UNPLANNED, losses
from scripts.views.data import at_one_setting, measured_gpu, measured_machine, select

VERSIONS = {
    "gpu": "GPU",
    "gpu_count": "GPUs used",
    "nodes": "nodes of a launch",
    "links": "links per GPU",
    "cpu": "processor",
    "cores": "CPU cores",
    "driver": "NVIDIA driver",
    "cuda": "CUDA (PyTorch build)",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "torch": "PyTorch",
    "torch_files": "digest of PyTorch's files",
    "triton": "Triton",
    "flash_attn": "FlashAttention-4 (flash-attn-4)",
    "python": "Python",
    "seed": "seed",
}
IN_FULL = {
    r"(each process|It does not fit: a rank) needs .* are free.*": "a process would need more memory than is free",
    r"it needs .* by closed form, and .*": "the step does not fit, according to its closed form",
}
"""Recorded messages whose numbers differ by cell, in other words."""
UNKNOWN = {"cores": "0", "gpu_count": "0", "nodes": "1"}
"""Values that are not printed, besides an empty text: not recorded, none, or as on any single machine."""
WORDS = {
    "incomplete": "without a metric",
    "oom": "out of memory",
    "skipped": "not possible here",
    "failed": "failed",
    "not run": "not run",
}
"""The words for cells by their outcome."""
SMOKE_SIZES = ("nano", "micro", "mini")
"""Models that are not the handout's."""
SHORT_COMMIT = 7
"""Number of printed characters of a commit."""


def summarize(
    tables: Mapping[str, DataFrame],
    plan: Plan,
    coverage: DataFrame,
    checks: DataFrame,
) -> dict[str, Any]:
    """Values and tables that belong to no single section."""
    gpu, lost = measured_gpu(tables), losses(plan, tables)
    return {
        "machine": measured_machine(tables),
        "label": plan.machine,
        "recorded": plan.recorded,
        "results": plan.results.as_posix(),
        "scale": plan.scale,
        "gpu": gpu,
        "peak": gpu_of(gpu),
        **model_settings(tables["end_to_end"]),
        "shapes": [
            f"{name} has {SIZES[name].num_layers} blocks of width {SIZES[name].d_model}" for name in SMOKE_SIZES
        ],
        **origin(tables),
        "outdated": outdated(tables),
        "seconds": sum(map(seconds_of, tables.values())),
        "cells_planned": int(coverage["planned"].sum()),
        "cells_ok": int(coverage["ok"].sum()),
        "lost": lost_in_words(coverage),
        "cells_unplanned": int(coverage[UNPLANNED].sum()),
        "reasons": reasons_table(lost),
        "failed": failed_table(checks),
        "checks": checks.to_dict("records"),
        "checks_failed": int((checks["outcome"] == "failed").sum()),
        "checks_applicable": int((checks["outcome"] != "not applicable").sum()),
    }


def model_settings(end_to_end: DataFrame) -> dict[str, int | None]:
    """The settings common to all models of the report."""
    shown = at_one_setting("end_to_end", end_to_end)
    return {name: int(shown[name].iloc[0]) if len(shown) else None for name in ("batch_size", "vocab_size")}


def origin(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """When, with which code and with which versions the rows were measured."""
    rows = pandas.concat(tables.values()).sort_values("utc", kind="stable")
    days = [utc[:10] for utc in rows["utc"]]
    return {
        "measured_from": days[0] if days else None,
        "measured_to": days[-1] if days else None,
        "commits": [commit[:SHORT_COMMIT] or "unknown" for commit in dict.fromkeys(rows["git_commit"])],
        "dirty": bool(rows["git_dirty"].eq(True).any()),  # may be None
        "versions": versions_table(rows),
    }


def outdated(tables: Mapping[str, DataFrame]) -> list[str]:
    """The experiments with rows of revisions other than the current ones."""
    return [name for name, table in tables.items() if not all(map(is_current, table["revisions"].unique()))]


def versions_table(rows: DataFrame) -> Table:
    """Hardware and software, every value that occurs in the rows."""
    body = []
    for column, title in VERSIONS.items():
        values = sorted({str(value) for value in rows[column]} - {"", UNKNOWN.get(column)})
        body.append([title, ", ".join(values)])
    return Table(["item", "value"], [line for line in body if line[1]], text_columns=2)


def lost_in_words(coverage: DataFrame) -> Typst:
    """The other planned cells, outcome by outcome: " (the others: 9 out of memory, 16 not run)"."""
    counts = {outcome: int(coverage[outcome].sum()) for outcome in OUTCOMES[1:]}
    lost = ", ".join(f"{finalize(number)} {WORDS[name]}" for name, number in counts.items() if number)
    return Typst(f" (the others: {lost})" if lost else "")


def seconds_of(table: DataFrame) -> float:
    """The time of an experiment: measuring, and starting processes."""
    jobs = table.drop_duplicates(["utc", "startup_seconds"])  # a job ends once, and has its own start-up time
    return float(select(table, metric=WALL)["mean"].sum() + jobs["startup_seconds"].sum())


def failed_table(checks: DataFrame) -> Table | None:
    """The self-checks that failed, with their numbers."""
    failed = checks[checks["outcome"] == "failed"]
    return Table(["check", "numbers"], failed[["check", "detail"]].to_numpy().tolist(), 2) if len(failed) else None


def reasons_table(lost: DataFrame) -> Table | None:
    """Each reason once: the affected experiments, and the number of lost cells, and of lost measurements in others."""
    reasons = lost["reason"].where(lost["status"] != "oom", "out of memory").replace(IN_FULL, regex=True)
    noun = lost["metric"].map(lambda metric: "cell" if metric == WHOLE_CELL else "measurement")
    body = [
        [
            str(reason),
            ", ".join(dict.fromkeys(rows["experiment"])),
            Typst(", ".join(count(number, str(what)) for what, number in rows.groupby(noun)["cells"].sum().items())),
        ]
        for reason, rows in lost.groupby(reasons, sort=False)
    ]
    return Table(["reason", "experiments", "lost"], body, text_columns=2) if body else None
