"""Measured training with sharded optimizers, one row per contender: what figures, answers and checks share."""

from numpy import nan
from pandas import DataFrame, Series

from cs336_systems.accounting import optimizer_sharding as forms
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.optimizer_sharding import MOMENTS, OptimizerSharding
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.record import parameters
from cs336_systems.sizes import parse_size
from scripts.views.closed_forms import step_of
from scripts.views.communication import STATISTICS, WIDE_SPREAD
from scripts.views.data import PRECISIONS, select, size_order

CONTENDERS = {declared.name: declared.title for declared in OptimizerSharding.contenders}
"""What readers call them, in the order of tables."""
SCHEME = {
    "unsharded": "data parallel",
    "sharded": "sharded optimizer",
    "sharded_peer_memory": "sharded optimizer",
    "sharded_gradients": "ZeRO-2",
    "sharded_gradients_peer_memory": "ZeRO-2",
    "zero_redundancy": "sharded optimizer",
    "zero_redundancy_view": "sharded optimizer",
    "zero_redundancy_views": "sharded optimizer",
}
"""The closed form that is each contender's."""
OURS = [declared.name for declared in OptimizerSharding.contenders if not declared.foreign]
"""Those of which the closed form tells the peak, too."""
SHARDED = [name for name in OURS if name != "unsharded"]
PYTORCH = [name for name in CONTENDERS if name not in OURS]
HELD = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state"}
"""What is counted tensor by tensor, and what readers call it."""
REST = "rest"
INITIALIZED, BEFORE_UPDATE, AFTER_UPDATE = MOMENTS
CELL = ["size", "context", "processes", "precision"]
"""What tells apart the cells that the report compares."""
PHASES = ["forward", "backward", "synchronization", "optimizer"]


def compared(table: DataFrame) -> DataFrame:
    """The rows of the largest model at its longest context."""
    if not len(table):
        return table
    table = select(table, size=size_order(table)[-1])
    return select(table, context=table["context"].max())


def contenders(table: DataFrame) -> DataFrame:
    """One row per measured contender of each cell that `compared` leaves, fewest processes and fp32 first.

    Columns: the parameters, `label`, `gpu`, `contender`, `title` and `cell`; STATISTICS of the step, ms; `wide`,
    whether its steps are more than WIDE_SPREAD apart; the medians of PHASES and of the profile's times, ms, NaN where
    there are none.
    """
    table = compared(table)
    keys = [*parameters(OptimizerSharding), "label", "gpu", "contender"]
    steps = select(table, metric="step", status="ok").set_index(keys)
    times = [*PHASES, "device_busy", "compute", "communication", "hidden", "timeline_length"]
    numeric = table[table["metric"].isin(times) & table["median"].notna()]
    wide = numeric.pivot(index=keys, columns="metric", values="median").reindex(index=steps.index, columns=times)
    wide = steps[STATISTICS].join(wide).reset_index()
    wide["wide"] = (wide["p80"] - wide["p20"]) / wide["median"] > WIDE_SPREAD
    return in_order(wide)


def memory(table: DataFrame) -> DataFrame:
    """One row per contender and moment: MiB on the rank that has most in use.

    Columns: the parameters, `label`, `gpu`, `contender`, `title`, `cell` and `moment`; those of HELD; `allocated`, REST
    (allocated, but none of HELD) and `peak`, NaN where the allocator does not count; `total`, all that was counted;
    `least_state` and `whole_state`: the optimizer state of the rank that has least, and of all ranks.
    """
    table = select(compared(table), status="ok")
    keys = [*parameters(OptimizerSharding), "label", "gpu", "contender", "moment"]
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
    found = largest.droplevel("rank").assign(peak=every["peak"].max())
    return in_order(found.assign(least_state=state.min(), whole_state=state.sum()).reset_index())


def in_order(rows: DataFrame) -> DataFrame:
    """Rows of contenders with `title` and `cell`, as tables list them."""
    rows = rows.assign(title=rows["contender"].map(CONTENDERS), cell=[cell_name(row) for _, row in rows.iterrows()])
    order = rows.assign(
        contender=rows["contender"].map(list(CONTENDERS).index), precision=rows["precision"].map(PRECISIONS.index)
    )
    return rows.loc[order.sort_values([*CELL, "contender"], kind="stable").index]


def cell_name(row: Series) -> str:
    """A cell in words, as in "2 GPUs, bf16"."""
    return f"{row['processes']} {'GPUs' if row['gpu'] else 'processes'}, {row['precision']}"


def scheme_of(row: Series) -> forms.Scheme:
    """The closed form that is a contender's."""
    return forms.SCHEMES[SCHEME[row["contender"]]]


def predicted(row: Series) -> dict[str, float]:
    """The closed form of what a rank holds at a row's moment, MiB, by part."""
    whole = forms.fp32_adamw(parse_size(row["size"]), int(row["vocab_size"]))
    own = scheme_of(row).memory(whole, int(row["processes"]))
    trained = row["moment"] != INITIALIZED
    return {
        "parameters": own.parameters / MIB,
        "gradients": own.gradients / MIB if trained else 0.0,
        "optimizer_state": own.optimizer_state / MIB if trained else 0.0,
    }


def predicted_peak(row: Series) -> float:
    """The closed form of the most that a rank has in use in a step, MiB; NaN for PyTorch's, which has other buckets."""
    if row["contender"] not in OURS:
        return nan
    step = step_of(Series({**row, "attention": "plain", "segment": 0}))
    return forms.peak(scheme_of(row), step, int(row["processes"])) / MIB


def peaks(rows: DataFrame) -> DataFrame:
    """One row per contender of `memory`: that after the update, with `peak` the most in the whole step.

    Added: `passes` and `update`, MiB: the most until the update, and in it; `predicted_peak`.
    """
    keys = [*CELL, "contender"]
    before = select(rows, moment=BEFORE_UPDATE).set_index(keys)["peak"].rename("passes")
    after = select(rows, moment=AFTER_UPDATE).join(before, on=keys).rename(columns={"peak": "update"})
    after["peak"] = after[["passes", "update"]].max(axis=1, skipna=False)
    after["predicted_peak"] = [predicted_peak(row) for _, row in after.iterrows()]
    return after


def memory_unit_of(rows: DataFrame) -> tuple[str, float]:
    """The unit in which readers get the memory of these rows: its name and its MiB."""
    return ("GiB", 1024.0) if rows["total"].max() > 4 * 1024 else ("MiB", 1.0)
