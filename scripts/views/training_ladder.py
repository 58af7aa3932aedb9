"""The training ladder: one row per rung of each cell, the time of the step's parts alone, and the gain of each rung."""

from collections.abc import Iterable, Iterator

import pandas
from pandas import DataFrame, MultiIndex, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.training_ladder import FP8, LADDER, RUNGS
from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import say
from scripts.rendering.markup import Typst
from scripts.views.cells import wide
from scripts.views.closed_forms import flops_of
from scripts.views.data import in_order, largest_model, select, size_order
from scripts.views.verdicts import against

SHAPE = ["size", "label", "batch_size", "context", "vocab_size"]
PARTS = ("matmuls", "attention", "update", "norms and elementwise")
"""The parts of a step that are timed alone."""
EXTRA = ("FP8 matmuls", "FP8 rounding")
FP8_PARTS = (*PARTS[1:], *EXTRA)
"""The parts of a step in FP8, which has other matmuls."""
SUMS = {
    "floor": ("median", PARTS),
    "fp8_floor": ("median", FP8_PARTS),
    "floor_p20": ("p20", PARTS),
    "floor_p80": ("p80", PARTS),
}
"""Sums of parts: the statistic that is summed, and the parts."""
METRICS = ["step", "first_steps", "device_busy", "launches", "energy", "setup", "peak_memory"]
STATISTICS = ["median", "p20", "p80", "n", "samples", "gpu", "gpu_memory"]
EXACT = [rung.name for rung in LADDER]
SCATTER = 3
"""Standard deviations of fp32 losses from different seeds within which each rung's loss must lie."""
WORTH = 0.02
"""Share of a step that a rung must save to be recommended: launches may differ by less."""


def rows_of(table: DataFrame, part: str, keys: list[str]) -> DataFrame:
    """The rows of rungs in a part of the experiment; if several grids measured a cell, the first."""
    rows = select(table, part=part, status="ok")
    return rows[rows["rung"] != ""].drop_duplicates([*keys, "metric"])


def rung_table(table: DataFrame) -> DataFrame:
    """One row per timed rung of each cell, small to large, in the order of the rungs.

    Columns: SHAPE; `rung`, `title`; the medians of METRICS, NaN if there is none; STATISTICS of the step;
    `host_bound`; `floor`, ms, of a bf16 step or FP8's, NaN unless every part was measured; `floor_p20` and `floor_p80`,
    ms, of a bf16 step; `over`, the step over its floor; `utilization`, of the dense bf16 peak, causal, without the
    embedding; `tokens`, per second; `joules`, per token.
    """
    keys = [*SHAPE, "rung"]
    rungs = wide(rows_of(table, "steps", keys), keys, METRICS, "step", STATISTICS).reset_index()
    rungs["host_bound"] = host_bound(rungs["step"], rungs["device_busy"])
    rungs = rungs.merge(floor_table(table).drop(columns=[*PARTS, *EXTRA]), on=SHAPE, how="left")
    rungs["floor"] = rungs.pop("fp8_floor").where(rungs["rung"] == FP8.name, rungs["floor"])
    rungs["title"] = ["last rung, " * bool(RUNGS[name].without) + RUNGS[name].title for name in rungs["rung"]]
    rungs["over"] = rungs["step"] / rungs["floor"]
    rungs["tokens"] = 1e3 * rungs["batch_size"] * rungs["context"] / rungs["step"]
    rungs["joules"] = rungs["energy"] / (rungs["batch_size"] * rungs["context"])
    rungs["utilization"] = [utilization(row) for _, row in rungs.iterrows()]
    return in_order(rungs, ["size", "context", "batch_size", "rung"], rung=list(RUNGS))


def utilization(row: Series) -> float | None:
    """FLOPs of a step over its time and the dense bf16 peak, causal, without the embedding; None without one."""
    peak = gpu_of(row["gpu"])
    return flops_of(row, causal=True) / (row["step"] / 1e3) / peak.flops("bf16") if peak else None


def floor_table(table: DataFrame) -> DataFrame:
    """One row per cell with parts timed alone: SHAPE, the median of each part in ms, and SUMS.

    A sum is NaN if a part is missing.
    """
    rows = select(table, metric="floor").drop_duplicates([*SHAPE, "work"])
    statistics = ["median", "p20", "p80"]
    wide = rows.pivot(index=SHAPE, columns="work", values=statistics)
    wide = wide.reindex(columns=MultiIndex.from_product([statistics, [*PARTS, *EXTRA]]))
    sums = {
        name: wide[[(statistic, part) for part in parts]].sum(axis=1, skipna=False)
        for name, (statistic, parts) in SUMS.items()
    }
    return wide["median"].assign(**sums).reset_index()


def ladders(rungs: DataFrame) -> Iterator[DataFrame]:
    """The rungs of each cell that are on the ladder, without FP8 and without those that leave a rung out."""
    for _, rows in rungs.groupby(SHAPE, sort=False):
        ladder = rows[rows["rung"].isin(EXACT)]
        if len(ladder):
            yield ladder


def fastest(ladder: DataFrame) -> Series:
    """The fastest rung of one cell."""
    return ladder.sort_values("step").iloc[0]


def ends(rungs: DataFrame) -> list[DataFrame]:
    """The ladders of the smallest and of the largest model that begin in fp32, each at its longest context.

    If none of these fit into memory, those that begin on a later rung.
    """
    several = [ladder for ladder in ladders(rungs) if len(ladder) > 1]
    whole = [ladder for ladder in several if ladder["rung"].iloc[0] == EXACT[0]] or several
    if not whole:
        return []
    sizes = size_order(pandas.concat(whole))
    chosen = dict.fromkeys((sizes[0], sizes[-1]))
    return [
        max((each for each in whole if each["size"].iloc[0] == size), key=lambda each: each["context"].iloc[0])
        for size in chosen
    ]


def worth_doing(ladder: DataFrame) -> DataFrame:
    """The rungs of one cell that save WORTH of the fastest step: `rung`, `title` and `gain`, ms, the largest first.

    A gain is over the rung before; fused passes replace the compiler, so only the one of the two that saves more is
    included.
    """
    rows = []
    for (_, before), (_, row) in zip(ladder.iterrows(), list(ladder.iterrows())[1:], strict=False):
        follows = EXACT.index(row["rung"]) == EXACT.index(before["rung"]) + 1
        if row["rung"] == "fused":  # compared with eager passes, which it replaces like the compiler
            eager = ladder[ladder["rung"] == "masters"]
            before, follows = (eager.iloc[0], True) if len(eager) else (before, False)
        gain = before["step"] - row["step"]
        if follows and against(row, before).faster and gain > WORTH * fastest(ladder)["step"]:
            rows.append({"rung": row["rung"], "title": row["title"], "gain": gain})
    worthwhile = DataFrame(rows, columns=["rung", "title", "gain"]).sort_values("gain", ascending=False)
    same = worthwhile["rung"].replace("fused", "compiled").duplicated()
    return worthwhile[~same]


def out_of_memory(table: DataFrame, ladder: DataFrame) -> list[str]:
    """The titles of the rungs of one cell that did not fit into memory."""
    cell = {name: ladder[name].iloc[0] for name in SHAPE}
    lost = set(select(table, part="steps", status="oom", **cell)["rung"])
    return [rung.title for name, rung in RUNGS.items() if name in lost]


def needed(table: DataFrame, ladder: DataFrame) -> list[str]:
    """The titles of the rungs up to the first that fits, for one cell; none if that is the ladder's first."""
    place = EXACT.index(ladder["rung"].iloc[0])
    return [rung.title for rung in LADDER[1 : place + 1]] if out_of_memory(table, ladder) else []


def italic(titles: Iterable[str]) -> list[Typst]:
    """Titles of rungs, which have commas and conjunctions of their own, for a list."""
    return [say("_{title}_", title=title) for title in titles]


def wrapped_table(table: DataFrame) -> DataFrame:
    """One row per wrapper of each cell of several processes, including the step without communication.

    Columns: SHAPE, `processes`; `rung`, `title`; the medians of `step`, ms, `device_busy`, ms, and `peak_memory`, MiB;
    STATISTICS of the step; `host_bound`; `graph`, whether a CUDA graph is replayed; `tokens` of all processes, per
    second.
    """
    keys = [*SHAPE, "processes", "rung"]
    rows = rows_of(table, "processes", keys)
    ways = wide(rows, keys, ["step", "device_busy", "peak_memory"], "step", STATISTICS).reset_index()
    ways["host_bound"] = host_bound(ways["step"], ways["device_busy"])
    ways["graph"] = [RUNGS[name].graph for name in ways["rung"]]
    ways["title"] = [RUNGS[name].title if RUNGS[name].wrapper else "no communication" for name in ways["rung"]]
    ways["tokens"] = 1e3 * ways["processes"] * ways["batch_size"] * ways["context"] / ways["step"]
    return in_order(ways, ["rung"], rung=list(RUNGS))


def wrapped_cell(table: DataFrame) -> DataFrame:
    """The rows of `wrapped_table` on GPUs for the largest model on the most ranks."""
    rows = wrapped_table(table)
    rows = largest_model(rows[rows["gpu"] != ""], "processes")
    return rows.merge(rows[SHAPE].head(1), on=SHAPE)


def losses(table: DataFrame) -> DataFrame:
    """One row per trained rung: `rung`; its mean `loss`, `std`, `n` and `samples`; the `error` of its gradients."""
    rows = rows_of(table, "training", ["rung"])
    metrics = {"loss_after": "loss", "gradient_error": "error"}
    trained = wide(rows, ["rung"], list(metrics), "loss_after", ["std", "n", "samples"], statistic="mean")
    return trained.rename(columns=metrics).reset_index()
