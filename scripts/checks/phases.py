"""Self-checks of the updates and precisions of training on several ranks, on GPUs."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.comparison import KINDS
from scripts.views.data import select

WHOLE_STATE = ("none", "naive", "flat", "overlapped", "bucketed", "symmetric_memory", "ddp", "ddp_view", "unsharded")
"""Contenders whose every rank updates all parameters, with the same optimizer."""
ALIKE = 0.3
"""Relative difference between two contenders' times of the same update."""
ON_GPUS = "examined on GPUs only"


def on_gpus(tables: Mapping[str, DataFrame], metric: str) -> Iterator[tuple[str, DataFrame]]:
    """Each experiment's rows of a metric that were measured on GPUs."""
    for name in KINDS:
        rows = select(tables[name], metric=metric)
        yield name, rows[rows["gpu"] != ""]


@check("{n} contenders", ON_GPUS)
def updates_are_alike(tables: Mapping[str, DataFrame]) -> Evidence:
    """Contenders that update all parameters take equally long for it."""
    for name, rows in on_gpus(tables, "optimizer"):
        whole = rows[rows["wrapper" if "wrapper" in rows else "contender"].isin(WHOLE_STATE)]
        usual = whole.groupby(parameters(KINDS[name]))["median"].transform("median")
        for _, row in whole.assign(usual=usual).iterrows():
            found = f"{row['median']:.1f} ms, usually {row['usual']:.1f} ms"
            yield Case(name_row(name, row), abs(row["median"] / row["usual"] - 1) > ALIKE, found)


@check("{n} contenders", ON_GPUS)
def bf16_is_faster(tables: Mapping[str, DataFrame]) -> Evidence:
    """Training on several GPUs is faster in bf16 than in fp32.

    The same step takes longer in fp32, compiled or not, since its matmuls run at a fraction of the rate.
    """
    for name, rows in on_gpus(tables, "step"):
        keys = ["size", "processes", *KINDS[name].details]
        quickest = select(rows, precision="fp32").groupby(keys)["median"].min().rename("fp32")
        for _, row in select(rows, precision="bf16").join(quickest, on=keys, how="inner").iterrows():
            found = f"{row['median']:.1f} ms, in fp32 {row['fp32']:.1f} ms"
            yield Case(name_row(name, row), row["median"] >= row["fp32"], found)
