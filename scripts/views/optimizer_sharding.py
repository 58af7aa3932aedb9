"""The memory of ranks that train with sharded optimizers, and its closed forms."""

from numpy import nan
from pandas import DataFrame, Series

from cs336_systems.accounting import optimizer_sharding as forms
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.optimizer_sharding import CONTENDERS, HELD, MOMENTS, OptimizerSharding
from cs336_systems.record.measurement import parse_samples
from cs336_systems.record.rows import parameters
from scripts.views.closed_forms import contender_step, model_of
from scripts.views.comparison import CELL as CELLS
from scripts.views.comparison import OURS, compared, described
from scripts.views.data import select

UNSHARDED = "unsharded"
"""The contenders with the whole state on every rank."""
SCHEME = {each.name: str(each.scheme) for each in CONTENDERS}
"""Each contender's closed form; there is none for a user's own."""
INITIALIZED, BEFORE_UPDATE, AFTER_UPDATE = MOMENTS
CELL = [name for name in CELLS if name in parameters(OptimizerSharding)]
"""The parameters that distinguish the compared cells."""


def memory(table: DataFrame) -> DataFrame:
    """One row per contender and moment: MiB on the rank with most memory in use.

    Columns: the parameters, `label`, `gpu`, `moment`, and what `described` adds; all of HELD; `allocated`, `rest`
    (allocated, but none of HELD) and `peak`, NaN if there is no allocator to count them; `total`, everything counted;
    `most_state` and `whole_state`: the optimizer state of the rank with the most of it, and of all ranks.
    """
    table = select(compared(OptimizerSharding, table), status="ok")
    keys = [*parameters(OptimizerSharding), "label", "gpu", "contender", "bucket_mb", "moment"]
    counts = table[table["metric"].isin(["held", "allocated", "peak_memory"])]
    by_rank = DataFrame(
        [
            {**{key: row[key] for key in keys}, "rank": rank, "what": row["part"] or row["metric"], "count": count}
            for row in counts.to_dict("records")
            for rank, count in enumerate(parse_samples(row["samples"]))
        ],
        columns=[*keys, "rank", "what", "count"],
    )
    ranks = by_rank.pivot(index=[*keys, "rank"], columns="what", values="count")
    ranks = ranks.reindex(columns=[*HELD, "allocated", "peak_memory"]).rename(columns={"peak_memory": "peak"})
    held = ranks[list(HELD)].sum(axis=1)
    ranks = ranks.assign(rest=ranks["allocated"] - held, total=ranks["allocated"].fillna(held))
    largest = ranks.sort_values("total", ascending=False, kind="stable").groupby(keys, sort=False).head(1)
    every = ranks.groupby(keys)
    state = every["optimizer_state"]
    fullest = largest.droplevel("rank").assign(peak=every["peak"].max())
    fullest = fullest.assign(most_state=state.max(), whole_state=state.sum()).reset_index()
    return described(OptimizerSharding, fullest)


def predicted(row: Series) -> dict[str, float]:
    """The closed form of a rank's memory at a row's moment, MiB, by part; empty for a user's own."""
    if row["contender"] not in SCHEME:
        return {}
    whole = forms.fp32_adamw(*model_of(row))
    own = forms.SCHEMES[SCHEME[row["contender"]]].memory(whole, int(row["processes"]))
    trained = row["moment"] != INITIALIZED
    return {
        "parameters": own.parameters / MIB,
        "gradients": own.gradients / MIB if trained else 0.0,
        "optimizer_state": own.optimizer_state / MIB if trained else 0.0,
    }


def predicted_peak(row: Series) -> float:
    """The closed form of the peak memory in use on a rank of ours in a step, MiB; NaN for others, which have other
    buckets.
    """
    if row["family"] != OURS:
        return nan
    return peak(contender_step(OptimizerSharding, row)).total / MIB


def peaks(rows: DataFrame) -> DataFrame:
    """One row per contender of `memory`: the one after the update, with the whole step's `peak`.

    Added: `passes` and `update`, MiB: the peak before the update, and in it; `predicted_peak`.
    """
    keys = [*CELL, "contender"]
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)["peak"].rename("passes")
    after = select(rows, moment=AFTER_UPDATE).join(before, on=keys).rename(columns={"peak": "update"})
    after["peak"] = after[["passes", "update"]].max(axis=1, skipna=False)
    after["predicted_peak"] = [predicted_peak(row) for _, row in after.iterrows()]
    return after
