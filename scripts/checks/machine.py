"""Self-checks of the machines that measured rows: one GPU model and version, its memory, and its clock."""

import dataclasses
import heapq
from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.measurement import SM_CLOCK
from cs336_systems.record.rows import Provenance, parameters
from scripts.checks import Case, Cases, check, name_row, rows_of
from scripts.views.attention_calls import kind_of_call
from scripts.views.data import samples
from scripts.views.units import GB, GIB

ONE_EACH = (
    *("torch", "torch_files", "triton", "cuda", "cudnn", "driver", "flash_attn", "python"),
    *("cpu", "gpu_memory", "seed"),
)
"""Columns that must be equal in rows that are compared."""
ALL_OF_THEM = ", ".join(ONE_EACH)
PACKAGES = {contender.package for contender in Flash.contenders}
"""Libraries used only by some implementations of attention."""
ORIGIN = [field.name for field in dataclasses.fields(Provenance) if field.name != "revisions"]
RESERVED = 0.1
"""Largest share of a GPU's memory that its driver reserves, for example for error correction."""
ABOVE_OTHERS = 0.1
"""Share by which one cell's clock may exceed all others."""


@check("{n} experiment{s}")
def one_machine(tables: Mapping[str, DataFrame]) -> Cases:
    """All rows were measured on one GPU model, with one GPU per process and TF32 off (probed by a multiplication)."""
    models = {gpu or "no GPU" for table in tables.values() for gpu in table["gpu"]}
    for name, table in measured(tables).items():
        on_gpu = (table["gpu"] != "") & (table["backend"] == "nccl" if "backend" in table else True)
        processes = table["processes"] if "processes" in table else EXPERIMENTS[name].processes
        tf32, miscounted = (int(rows.sum()) for rows in (table["tf32"], table["gpu_count"] != on_gpu * processes))
        detail = f"{' and '.join(sorted(models))}, TF32 in {tf32} rows, another number of GPUs in {miscounted}"
        yield Case(name, len(models) > 1 or tf32 + miscounted > 0, detail)


@check("{n} experiment{s}: {ALL_OF_THEM}")
def one_version_each(tables: Mapping[str, DataFrame]) -> Cases:
    """All rows of an experiment were measured with the same versions, processor and seed.

    Libraries that earlier code did not query have no version, which is accepted. The version of a library that only one
    implementation needs is compared only in its rows.
    """
    for name, table in measured(tables).items():
        differing = []
        for column in ONE_EACH:
            for rows in compared_rows(name, column, table):
                known = rows.loc[rows[column] != "", column]
                by_commit = rows.groupby("git_commit")[column]
                if known.nunique(dropna=False) > 1 or (by_commit.nunique(dropna=False) > 1).any():
                    values = " and ".join(str(each) or "unknown" for each in rows[column].unique())
                    differing.append(f"{column} {values}")
        yield Case(name, bool(differing), ", ".join(differing))


def measured(tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The tables that have rows."""
    return {name: table for name, table in tables.items() if len(table)}


def compared_rows(name: str, column: str, table: DataFrame) -> list[DataFrame]:
    """The rows of an experiment that must have the same version, in groups: all rows, or the rows of contenders that
    need a library.

    If only others are measured, it need not be installed.
    """
    if column not in PACKAGES:
        return [table]
    if name != Flash.name:
        return []
    needing = [contender.name for contender in Flash.contenders if contender.package == column]
    rows = table[table["implementation"].isin(needing)]
    return [group for _, group in rows.groupby(kind_of_call(rows))]


@check("{n} cell{s}")
def cells_have_one_origin(tables: Mapping[str, DataFrame]) -> Cases:
    """All rows of a cell come from one job.

    They share the columns that a job's rows share; each contender has its own revisions.
    """
    for name, table in tables.items():
        keys = parameters(EXPERIMENTS[name])
        origins = table[[*keys, *ORIGIN]].drop_duplicates()
        several = origins.duplicated(keys)
        for (_, row), other in zip(origins.iterrows(), several, strict=True):
            yield Case(name_row(name, row), other, "from another job")


@check("{n} job{s}", "no data sheet is listed for this GPU or CPU")
def card_has_its_memory(tables: Mapping[str, DataFrame]) -> Cases:
    """The GPU's memory is the data sheet's, in GB or GiB, minus the driver's share."""
    for name, table in tables.items():
        jobs = table[["gpu", "gpu_memory", "utc"]].drop_duplicates()
        for gpu, memory in zip(jobs["gpu"], jobs["gpu_memory"], strict=True):
            if sheet := gpu_of(gpu):
                low, high = (1 - RESERVED) * sheet.memory, sheet.memory / GB * GIB
                detail = f"{memory / GIB:.1f} GiB, not between {low / GIB:.1f} and {high / GIB:.1f}"
                yield Case(name, not low <= memory <= high, detail)


@check("{n} cell{s}", "no GPU's clock was sampled")
def clocks_are_clocks(tables: Mapping[str, DataFrame]) -> Cases:
    """A GPU's clock is a whole number of MHz that other cells also reach."""
    clocks = [(cell, samples(row)) for cell, row in rows_of(tables, metric=SM_CLOCK)]
    second = min(heapq.nlargest(2, (max(sampled) for _, sampled in clocks)), default=0.0)
    for cell, sampled in clocks:
        wrong = any(sample % 1 for sample in sampled) or max(sampled) > (1 + ABOVE_OTHERS) * second
        yield Case(cell, wrong, f"{max(sampled):g} MHz, the second highest of all cells {second:g} MHz")
