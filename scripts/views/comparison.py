"""The contenders of data_parallel, optimizer_sharding and fsdp, one row each, and which of two is faster.

A contender whose name the experiment does not list is a user's own: it is in every table, figure and verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy import median, nan
from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import say
from scripts.rendering.markup import Typst
from scripts.views.cells import wide
from scripts.views.communication import STATISTICS, WIDE_SPREAD
from scripts.views.data import PRECISIONS, in_order, largest_model, one, samples, select
from scripts.views.verdicts import Speed, against, samples_by_round

Kind = type[DataParallelTraining | OptimizerSharding | FullyShardedTraining]
KINDS: dict[str, Kind] = {kind.name: kind for kind in (DataParallelTraining, OptimizerSharding, FullyShardedTraining)}
OURS, FOREIGN, OWN = "ours", "foreign", "own"
"""The families of contenders: this project's, a library's, a user's own."""
CELL = ["size", "context", "processes", "compiled", "precision"]
"""The parameters that distinguish the compared cells; each experiment has those that it varies."""
PHASES = ["forward", "backward", "synchronization", "optimizer"]
"""Phases of a step in which the device is idle after each of them."""
ADD_UP = 0.1
"""If the phases of a contender add up to its step with a larger relative difference, they do not count as its parts.

On two H200s it is within 0.03 if both are device-bound, and at least 0.19 if the step is captured and its phases are
launched call by call.
"""
UNSTEADY = 0.5
"""If the baseline's medians of two rounds differ by more than this share, differences from it are not reported."""
OTHERS = ["outside_memory", "forward_hidden", "forward_gathers"]
"""Metrics of only some of the experiments, for columns that all have."""


def contenders(kind: Kind, table: DataFrame) -> DataFrame:
    """One row per measured contender of each cell that `compared` leaves: small models, few processes, fp32 first.

    Columns: the parameters, `label`, `gpu` and `gpu_memory`, and `described`'s; STATISTICS of the step, ms;
    `wide`, whether its steps are more than WIDE_SPREAD apart, and `star`, which marks them in tables; the medians of
    the other metrics, as measured, NaN where they were not, and of PHASES where they do not add up to the step;
    `memory`, MiB: the peak, and what lies outside of the allocator; `synchronization_share`, of the step whose phases
    were timed.
    From the profiled step: `hidden_share` of its communication; `forward_share`, the share of hidden all-gathers in the
    profiled forward pass; `busy`, the device's share of it, the median of the cell's contenders, since a single one may
    wait for something other than the host; `host_bound`, decided from it.
    Against the baseline of the cell, NaN where there is none: the columns of `against_the_baseline`.
    """
    table = compared(kind, table)
    keys = [*parameters(kind), "label", "contender", "bucket_mb"]
    table = select(table, moment="")
    metrics = [name for name in dict.fromkeys([*kind.metrics, *OTHERS]) if name != "step"]
    statistics = [*STATISTICS, "samples", "mean", "gpu", "gpu_memory"]
    rows = wide(select(table, kind=""), keys, metrics, "step", statistics)
    rows = described(kind, rows.reset_index())
    rows["wide"] = (rows["p80"] - rows["p20"]) / rows["median"] > WIDE_SPREAD
    rows["star"] = rows["wide"].map({True: " *", False: ""})
    rows[PHASES] = rows[PHASES].where(phases_add_up(rows))
    rows["synchronization_share"] = rows["synchronization"] / rows[PHASES].sum(axis=1, skipna=False)
    rows["memory"] = rows["peak_memory"] + rows["outside_memory"].fillna(0)
    rows["hidden_share"] = rows["hidden"] / rows["communication"].replace(0, nan)
    rows["forward_share"] = rows["forward_hidden"] / rows["forward_gathers"].replace(0, nan)
    rows["busy"] = (rows["device_busy"] / rows["timeline_length"]).groupby(rows["cell"]).transform("median")
    rows["host_bound"] = host_bound(1.0, rows["busy"])
    return against_the_baseline(kind, rows)


def compared(kind: Kind, table: DataFrame) -> DataFrame:
    """The compared rows, with `contender`, `bucket_mb` and `moment` in every experiment.

    The largest model at its longest context, except for fsdp, which shows every size; of a cell measured several times,
    the run with the most contenders.
    """
    table = table.rename(columns={"wrapper": "contender"})
    table = table.assign(**{name: "" for name in ("bucket_mb", "moment") if name not in table})
    if kind is not FullyShardedTraining:
        table = largest_model(table, "context")
    cell = [name for name in CELL if name in table]
    keys = [*cell, "implementation"]
    times = table.groupby(keys)["contender"].nunique().reset_index()
    most = times.sort_values("contender", kind="stable").drop_duplicates(cell, keep="last")
    return table.merge(most[keys], on=keys)


def described(kind: Kind, rows: DataFrame) -> DataFrame:
    """Rows of contenders in the order of tables, with `title`, `family` and `cell` in words: "2.7B, 2 GPUs, bf16"."""
    families = {each.name: FOREIGN if each.foreign else OURS for each in kind.contenders}
    rows = rows.assign(
        title=[title(kind, row) for _, row in rows.iterrows()],
        family=[families.get(name, OWN) for name in rows["contender"]],
        cell=[f"{row['label']}, {ranks_of(row)}, {setting_name(kind, row)}" for _, row in rows.iterrows()],
    )
    sizes = sorted(rows["bucket_mb"].unique(), key=lambda size: float(size or math.inf))
    names = [*dict.fromkeys([*families, *rows["contender"]])]
    return in_order(rows, [*CELL, "contender", "bucket_mb"], contender=names, bucket_mb=sizes)


def title(kind: Kind, row: Series) -> str:
    """A contender in words; a user's own by its name."""
    declared = {each.name: each for each in kind.contenders}.get(row["contender"])
    if declared is None:
        return str(row["contender"])
    return declared.title + (f", {row['bucket_mb']} {'MiB' if declared.foreign else 'MB'}" if row["bucket_mb"] else "")


def ranks_of(row: Series) -> str:
    """How many ranks train, as in "2 GPUs"."""
    return f"{row['processes']} {'GPUs' if row['gpu'] else 'processes'}"


def setting_name(kind: Kind, row: Series) -> str:
    """The setting of a cell in words; on GPUs a compiled step of data parallelism is one CUDA graph."""
    compiled = ", CUDA graph" if kind.replays and row["gpu"] else ", compiled"
    return row["precision"] + (compiled if row.get("compiled", False) else "")


def backend_of(row: Series) -> str:
    """The backend of a contender, as `all_reduce` names it."""
    return "nccl" if row["gpu"] else "gloo"


def phases_add_up(rows: DataFrame) -> Series:
    """Whether the phases of each contender are parts of its step; unknown ones are not checked."""
    apart = (rows[PHASES].sum(axis=1) / rows["median"] - 1).abs()
    return ~((apart > ADD_UP) & rows[["forward", "backward"]].notna().all(axis=1))


def against_the_baseline(kind: Kind, rows: DataFrame) -> DataFrame:
    """Add each contender's time beyond the baseline of its cell, in ms.

    `exposed`, `exposed_least` and `exposed_most`: the median, minimum and maximum over the rounds of its median step
    minus the baseline's, NaN if that is unsteady; if optimizers differ, minus the additional time of its optimizer. Of
    the profiled step: `stretch`, its compute over the baseline's, and what it takes longer: `stretched` (compute),
    `uncovered` (communication during no compute) and `idle`.
    """
    baselines = select(rows, contender=BASELINE).set_index("cell")

    def baseline(column: str) -> Series:
        return rows["cell"].map(baselines[column]).astype(float).where(rows["contender"] != BASELINE)

    exposed = [exposures(kind, row, baselines) for _, row in rows.iterrows()]
    stretched = rows["compute"] - baseline("compute")
    uncovered = (rows["communication"] - rows["hidden"]).where(baseline("median").notna())
    return rows.assign(
        baseline=baseline("median"),
        stretch=rows["compute"] / baseline("compute"),
        stretched=stretched,
        uncovered=uncovered,
        idle=rows["timeline_length"] - baseline("timeline_length") - stretched - uncovered,
    ).join(DataFrame(exposed, index=rows.index, columns=["exposed", "exposed_least", "exposed_most"], dtype=float))


def exposures(kind: Kind, row: Series, baselines: DataFrame) -> tuple[float, float, float]:
    """The median, minimum and maximum over the rounds of a contender's step beyond its baseline's, ms."""
    if row["contender"] == BASELINE or row["cell"] not in baselines.index:
        return nan, nan, nan
    baseline = baselines.loc[row["cell"]]
    update = row["optimizer"] - baseline["optimizer"] if kind is FullyShardedTraining else 0.0
    beyond = median(samples_by_round(row), axis=1) - median(samples_by_round(baseline), axis=1) - update
    return (median(beyond), beyond.min(), beyond.max()) if steady(baseline) else (nan, nan, nan)


def steady(baseline: Series) -> bool:
    """Whether the medians of a contender's rounds are close enough to each other."""
    rounds = median(samples_by_round(baseline), axis=1)
    return bool(rounds.max() - rounds.min() <= UNSTEADY * rounds.min())


def fastest(rows: DataFrame, names: Sequence[str]) -> Series | None:
    """The contender with the shortest median step, or None if none of them was measured."""
    measured = rows[rows["contender"].isin(names)]
    return None if not len(measured) else measured.sort_values("median", kind="stable").iloc[0]


def names_in(rows: DataFrame, family: str) -> list[str]:
    """The contenders of a family that were measured, in the order of tables."""
    return list(dict.fromkeys(select(rows, family=family)["contender"]))


def cells_of(rows: DataFrame) -> list[DataFrame]:
    """The contenders of each cell, in order."""
    return [cell for _, cell in rows.groupby("cell", sort=False)]


def first_cell(rows: DataFrame) -> DataFrame:
    """The contenders of the first cell, or no rows."""
    return next(iter(cells_of(rows)), rows)


def device_bound(rows: DataFrame) -> DataFrame:
    """The rows of device-bound cells, as far as known: conclusions are drawn only from these."""
    return rows[~rows["host_bound"].astype(bool)]


def device_bound_if_any(rows: DataFrame) -> DataFrame:
    """The rows of device-bound cells, or all rows if there are none: tables show these."""
    bound = device_bound(rows)
    return bound if len(bound) else rows


def marked(row: Series) -> str:
    """A cell in words, and whether it is host-bound."""
    return f"{row['cell']}{', host-bound' if row['host_bound'] else ''}"


def traced_cell(rows: DataFrame) -> DataFrame:
    """The contenders of the cell whose profiles are drawn, or no rows if none of their steps was profiled."""
    return next(iter(preferred_cells(rows[rows["timeline_length"].notna()])), rows.iloc[:0])


def preferred_cells(rows: DataFrame) -> list[DataFrame]:
    """The contenders of each cell; the first cell is the one that verdicts are about.

    Device-bound cells come first, then compiled ones, those with most contenders and fewest processes, and bf16 before
    fp32, where communication matters less.
    """

    def preference(cell: DataFrame) -> tuple[int, ...]:
        first = cell.iloc[0]
        compiled, precision = bool(first.get("compiled", False)), PRECISIONS.index(first["precision"])
        return (int(first["host_bound"]), -int(compiled), -len(cell), int(first["processes"]), -precision)

    return sorted(cells_of(rows), key=preference)


@dataclass(frozen=True)
class Duel:
    """Two contenders of one cell."""

    first: Series
    other: Series

    @property
    def speed(self) -> Speed:
        """Which is faster."""
        return against(self.first, self.other)

    @property
    def cell(self) -> str:
        """The cell in words."""
        return str(self.first["cell"])


def duels(rows: DataFrame, first: Sequence[str], other: Sequence[str]) -> list[Duel]:
    """Some contenders against others, each at its fastest, in the device-bound cells that have both."""
    pairs = [(fastest(cell, first), fastest(cell, other)) for cell in preferred_cells(device_bound(rows))]
    return [Duel(one, two) for one, two in pairs if one is not None and two is not None]


def yours(cell: DataFrame, others: Mapping[str, Sequence[str]]) -> Typst:
    """Each of a user's own contenders in a cell against the fastest of each group of others."""
    mine = [row for _, row in select(cell, family=OWN).iterrows()]
    return say(
        *(
            against(row, fastest(cell, names)).sentence(f"your {row['title']}", title)
            for row in mine
            for title, names in others.items()
        )
    )


def series(kind: Kind, table: DataFrame, row: Series, metric: str, of: str = "") -> list[float]:
    """The samples of a contender's metric, in order, or of one kind of operation; none if it was not measured."""
    details = {"wrapper": row["contender"], "contender": row["contender"], "bucket_mb": row["bucket_mb"], "kind": of}
    wanted = {name: row[name] for name in parameters(kind)} | {name: details.get(name, "") for name in kind.details}
    row_of_metric = one(table, metric=metric, status="ok", **wanted)
    return [] if row_of_metric is None else samples(row_of_metric)


def timeline(kind: Kind, table: DataFrame, row: Series) -> dict[str, list[float]]:
    """The share of each part of a contender's profiled step in which operations of each kind ran."""
    kinds = kind.vocabulary["kind"]
    shares_by_kind = {of: series(kind, table, row, "timeline", of) for of in kinds}
    return {of: shares for of, shares in shares_by_kind.items() if shares}
