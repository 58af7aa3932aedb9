"""Self-checks of what the rows of an experiment were measured with."""

import dataclasses
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import Provenance, parameters
from scripts.cells import in_words
from scripts.check import Check, conclude

ONE_EACH = ("torch", "triton", "cuda", "cudnn", "driver", "flash_attn", "python", "cpu", "gpu_memory", "seed")
"""What rows that are compared with each other must share."""
NEEDED_BY = {"flash_attn": "flash_attention_4"}
"""Libraries that one implementation needs: where others alone are measured, they need not be installed."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of origins."""
    yield one_version_each(tables)
    yield fp32_is_fp32(tables)
    yield gpus_are_counted(tables)
    yield cells_have_one_origin(tables)


def one_version_each(tables: Mapping[str, DataFrame]) -> Check:
    """All rows of an experiment come from the same versions of what determines speed.

    A library that was not installed, or not asked for by earlier code, has no version, which contradicts none that
    other code has noted, or that was noted where the library took part.
    """
    measured = {name: table for name, table in tables.items() if len(table)}
    complaints = [
        f"{name}: {column} {' and '.join(str(value) or 'unknown' for value in table[column].unique())}"
        for name, table in measured.items()
        for column in ONE_EACH
        if table.loc[table[column] != "", column].nunique(dropna=False) > 1
        or (rows_that_need(column, table).groupby("source_digest")[column].nunique(dropna=False) > 1).any()
    ]
    check = "all rows of an experiment were measured with the same versions, processor and seed"
    return conclude(check, complaints, len(measured), f"{len(measured)} experiments: {', '.join(ONE_EACH)}")


def rows_that_need(column: str, table: DataFrame) -> DataFrame:
    """The rows of which all must have a version: of a library that one implementation needs, its rows."""
    if column in NEEDED_BY and "implementation" in table:
        return table[table["implementation"] == NEEDED_BY[column]]
    return table


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
        origins = table.drop_duplicates([*keys, *columns])
        several = origins[origins.duplicated(keys)].drop_duplicates(keys)
        examined += len(origins.drop_duplicates(keys))
        complaints += [in_words(EXPERIMENTS[name], tuple(row[keys])) for _, row in several.iterrows()]
    return conclude("all rows of a cell are of one job", complaints, examined, f"{examined} cells")
