"""Self-checks of what the rows of an experiment were measured with."""

import dataclasses
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import Provenance, parameters
from scripts.checks import Check, conclude
from scripts.views.attention_calls import kind_of_call
from scripts.views.cells import in_words
from scripts.views.own import own_rows

ONE_EACH = (
    *("torch", "torch_files", "triton", "cuda", "cudnn", "driver", "flash_attn", "python"),
    *("cpu", "gpu_memory", "seed"),
)
"""What rows that are compared with each other must share."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of origins."""
    yield one_version_each(tables)
    yield fp32_is_fp32(tables)
    yield gpus_are_counted(tables)
    yield cells_have_one_origin(tables)


def one_version_each(tables: Mapping[str, DataFrame]) -> Check:
    """All rows of an experiment come from the same versions of what determines speed.

    What earlier code did not ask for has no version, which contradicts none. The version of a library that one
    implementation needs counts in its rows, among those that a table compares.
    """
    measured = {name: table for name, table in tables.items() if len(table)}
    complaints = [
        f"{name}: {column} {' and '.join(str(value) or 'unknown' for value in rows[column].unique())}"
        for name, table in measured.items()
        for column in ONE_EACH
        for rows in compared_rows(name, column, table)
        if rows.loc[rows[column] != "", column].nunique(dropna=False) > 1
        or (rows.groupby("source_digest")[column].nunique(dropna=False) > 1).any()
    ]
    check = "all rows of an experiment were measured with the same versions, processor and seed"
    return conclude(check, complaints, len(measured), f"{len(measured)} experiments: {', '.join(ONE_EACH)}")


def compared_rows(name: str, column: str, table: DataFrame) -> list[DataFrame]:
    """The rows of an experiment that must have one version, in groups: all, or of the contenders that need a library.

    Where others alone are measured, it need not be installed.
    """
    contenders = getattr(EXPERIMENTS[name], "contenders", ())
    needing = [contender.name for contender in contenders if getattr(contender, "package", None) == column]
    if not needing:
        return [table]
    rows = table[table["implementation"].isin(needing)]
    return [group for _, group in rows.groupby(kind_of_call(rows))]


def fp32_is_fp32(tables: Mapping[str, DataFrame]) -> Check:
    """No matrix multiply was seen to round its inputs to TF32."""
    measured = {name: table for name, table in tables.items() if len(table)}
    complaints = [f"{name}: {table['tf32'].sum()} rows" for name, table in measured.items() if table["tf32"].any()]
    check = "TF32 was off in every job (probed by a multiplication)"
    return conclude(check, complaints, len(measured), f"{len(measured)} experiments")


def gpus_are_counted(tables: Mapping[str, DataFrame]) -> Check:
    """A measurement on GPUs ran on one GPU per process, any other on none."""
    complaints, examined = [], 0
    for name, table in tables.items():
        on_gpu = (table["gpu"] != "") & (table["backend"] == "nccl" if "backend" in table else True)
        processes = table["processes"] if "processes" in table else EXPERIMENTS[name].processes
        wrong = table[table["gpu_count"] != on_gpu * processes]
        examined += len(table)
        complaints += [f"{name}: {count} GPUs in {len(rows)} rows" for count, rows in wrong.groupby("gpu_count")]
    check = "measurements on GPUs ran on one per process, others on none"
    return conclude(check, complaints, examined, f"{examined} rows")


def cells_have_one_origin(tables: Mapping[str, DataFrame]) -> Check:
    """One job wrote all rows of a cell, so they share whatever a job's rows share."""
    columns = [field.name for field in dataclasses.fields(Provenance)]
    complaints, examined = [], 0
    for name, table in tables.items():
        keys = parameters(EXPERIMENTS[name])
        table = table[~own_rows(table)]  # whose code has a digest of its own
        origins = table.drop_duplicates([*keys, *columns])
        several = origins[origins.duplicated(keys)].drop_duplicates(keys)
        examined += len(origins.drop_duplicates(keys))
        complaints += [in_words(EXPERIMENTS[name], tuple(row[keys])) for _, row in several.iterrows()]
    return conclude("all rows of a cell are of one job", complaints, examined, f"{examined} cells")
