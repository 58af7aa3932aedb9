"""Self-checks of the kernels' times against the stages that hold them and against another experiment."""

from collections.abc import Iterator, Mapping

import pandas
from pandas import DataFrame, Series

from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.experiments.metrics import metrics_of
from cs336_systems.measure.record import parameters
from scripts.checks import TOLERANCE, Check, between_cells, conclude
from scripts.views.cells import in_words
from scripts.views.data import measured_gpu, select
from scripts.views.kernels import kernels

CELL = parameters(KernelProfile)
SHARED = [name for name in CELL if name not in ("warmup", "steps")]
"""What a cell has in common with one of `end_to_end`."""
STAGES = {"forward_busy": ["forward", "loss"], "backward_busy": ["backward"], "optimizer_busy": ["optimizer"]}
"""What the whole-step experiment calls the device's time in these stages; inference has no loss."""
ROUNDING = 1e-4
"""Share by which rounding may make a sum smaller."""
OVERLAP = 0.002
"""Share of a stage by which its kernels may overlap: one may start while the last blocks of another run."""
BUSY_TOLERANCE = 0.05
"""Share by which kernels may take longer under the profiler than their stage without it."""
INSTRUMENTS = 0.02
"""Relative difference of the device's time in a phase between the two instruments that measure it."""
GPUS_ONLY = "the device's own time is measured on GPUs only"


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of kernels' times."""
    table = tables["kernel_profile"]
    yield kernels_fill_their_stages(table)
    yield stages_make_up_the_step(table)
    yield stages_hold_their_kernels(table)
    yield busy_time_is_the_same_elsewhere(table, tables["end_to_end"])
    yield launches_are_the_same_elsewhere(table, tables["end_to_end"])


def kernels_fill_their_stages(table: DataFrame) -> Check:
    """The durations of a stage's kernels add up to its busy time, or to more where kernels overlap."""
    keys = [*CELL, "stage"]
    sums = kernels(table).groupby(keys)["ms"].sum()
    busy = select(table, metric="stage_busy", status="ok").set_index(keys)["mean"]
    both = busy.to_frame("busy").join(sums, how="outer").fillna(0)
    wrong = both[(both["ms"] < (1 - ROUNDING) * both["busy"]) | (both["ms"] > (1 + OVERLAP) * both["busy"])]
    complaints = [
        f"{in_words(KernelProfile, tuple(row[CELL]))}, {row['stage']}: kernels {row['ms']:.3f} ms,"
        f" busy {row['busy']:.3f} ms"
        for _, row in wrong.reset_index().iterrows()
    ]
    check = "the durations of a stage's kernels add up to the time in which it keeps the device busy"
    return conclude(check, complaints, len(both), f"{len(both)} stages, {ROUNDING:.2%} less to {OVERLAP:.1%} more")


def stages_make_up_the_step(table: DataFrame) -> Check:
    """The stages of a step, by the device's events, add up to the step by the host's clock."""
    disturbed = 0.0 if measured_gpu({"": table}) else TOLERANCE["CPU"]
    complaints, examined = [], 0
    for part, metric in metrics_of(KernelProfile).items():
        if not (whole := metric.part_of):
            continue
        steps = select(table, metric=whole, status="ok").set_index(CELL)["mean"]
        stages = select(table, metric=part, status="ok").groupby(CELL)["mean"].sum().reindex(steps.index)
        shares = (stages / steps).dropna()
        examined += len(shares)
        complaints += [
            f"{in_words(KernelProfile, cell)}: {part}s are {share:.0%} of {whole}"
            for cell, share in shares[(shares - 1).abs() > max(metric.between, disturbed)].items()
        ]
    check = "the stages of a step add up to the step, but for what lies between them, with the profiler and without"
    return conclude(check, complaints, examined, f"{examined} steps")


def stages_hold_their_kernels(table: DataFrame) -> Check:
    """No stage is shorter without the profiler than the time for which its kernels keep the device busy."""
    keys = [*CELL, "stage"]
    busy, stages = (select(table, metric=name, status="ok").set_index(keys)["mean"] for name in ("stage_busy", "stage"))
    shares = (busy / stages).dropna() if measured_gpu({"": table}) else busy.iloc[:0]
    complaints = [
        f"{in_words(KernelProfile, tuple(row[CELL]))}, {row['stage']}: {row['mean']:.0%} busy"
        for _, row in shares[shares > 1 + BUSY_TOLERANCE].reset_index().iterrows()
    ]
    summary = f"{len(shares)} stages; {shares.max():.0%} busy at most" if len(shares) else GPUS_ONLY
    return conclude("no stage is shorter than its kernels' time", complaints, len(shares), summary)


def beside(profiled: Series, end_to_end: DataFrame, metric: str) -> DataFrame:
    """What of each cell was `profiled` beside the same of warm processes of `end_to_end`, as `timed`."""
    warm = select(end_to_end, metric=metric, status="ok", cold_start=False)
    timed = warm.sort_values("warmup").drop_duplicates(SHARED, keep="last").set_index(SHARED)["mean"].rename("timed")
    return profiled.rename("profiled").reset_index().join(timed, on=SHARED, how="inner")


def compare(check: str, pairs: DataFrame, tolerance: float, unit: str) -> Check:
    """Whether each cell's two numbers agree."""
    errors = (pairs["profiled"] / pairs["timed"] - 1).abs()
    complaints = [
        f"{in_words(KernelProfile, tuple(row[CELL]))}: {row['profiled']:.2f}{unit}, {row['timed']:.2f}{unit}"
        for _, row in pairs[errors > tolerance].iterrows()
    ]
    worst = f"{len(pairs)} phases; largest difference {errors.max():.1%}" if len(pairs) else GPUS_ONLY
    return conclude(check, complaints, len(pairs), worst)


def busy_time_is_the_same_elsewhere(table: DataFrame, end_to_end: DataFrame) -> Check:
    """The device works in each phase for as long as in another process, whoever sets the pace."""
    busy = select(table, metric="stage_busy", status="ok")
    pairs = [
        beside(busy[busy["stage"].isin(stages)].groupby(CELL)["mean"].sum(), end_to_end, metric)
        for metric, stages in STAGES.items()
    ]
    tolerance = between_cells(INSTRUMENTS)
    check = f"the device's time in a phase agrees with `end_to_end` within {tolerance:.0%}, host-bound or not"
    return compare(check, pandas.concat(pairs, ignore_index=True), tolerance, " ms")


def launches_are_the_same_elsewhere(table: DataFrame, end_to_end: DataFrame) -> Check:
    """A step launches as many kernels, copies and fills as in another process."""
    calls = kernels(table).groupby(CELL)["calls"].sum()
    check = "a step launches as many kernels in the trace as in `end_to_end`"
    return compare(check, beside(calls, end_to_end, "launches"), 0, "")
