"""Self-checks of the updates of training on several ranks, on GPUs."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.record.rows import parameters
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.comparison import KINDS
from scripts.views.data import select

WHOLE_STATE = ("none", "naive", "flat", "overlapped", "bucketed", "symmetric_memory", "ddp", "ddp_view", "unsharded")
"""Contenders whose every rank updates all parameters, with the same optimizer."""
ALIKE = 0.3
"""Relative difference between two contenders' times of the same update."""


@check("{n} contenders", "examined on GPUs only")
def updates_are_alike(tables: Mapping[str, DataFrame]) -> Evidence:
    """Contenders that update all parameters take equally long for it."""
    for name, kind in KINDS.items():
        rows = select(tables[name], metric="optimizer")
        named = rows["wrapper" if "wrapper" in rows else "contender"]
        whole = rows[named.isin(WHOLE_STATE) & (rows["gpu"] != "")]
        usual = whole.groupby(parameters(kind))["median"].transform("median")
        for _, row in whole.assign(usual=usual).iterrows():
            found = f"{row['median']:.1f} ms, usually {row['usual']:.1f} ms"
            yield Case(name_row(name, row), abs(row["median"] / row["usual"] - 1) > ALIKE, found)
