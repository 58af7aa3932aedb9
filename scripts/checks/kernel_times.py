"""Self-checks of the kernels' times against the stages that hold them and against another experiment."""

from pandas import DataFrame, Series

from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.experiments.metrics import metrics_of
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Evidence, between_cells, check, name_row
from scripts.views.cells import in_words
from scripts.views.data import measured_gpu, select
from scripts.views.kernels import kernels

CELL = parameters(KernelProfile)
SHARED = [name for name in CELL if name not in ("warmup", "steps")]
"""Parameters that a cell has in common with one of `end_to_end`."""
STAGES = {"forward_busy": ["forward", "loss"], "backward_busy": ["backward"], "optimizer_busy": ["optimizer"]}
"""Stages by the metric of the whole-step experiment for the device's time in them; inference has no loss."""
ROUNDING = 1e-4
"""Share by which rounding may make a sum smaller."""
OVERLAP = 0.002
"""Share of a stage by which its kernels may overlap: one may start while the last blocks of another run."""
BUSY_TOLERANCE = 0.05
"""Share by which kernels may take longer under the profiler than their stage without it."""
INSTRUMENTS = between_cells(0.02)
"""Relative difference of the device's time in a phase between the two instruments that measure it."""
COMPARED = "{n} phases; largest difference {most:.1%}"
GPUS_ONLY = "the device's own time is measured on GPUs only"


def name_stage(row: Series) -> str:
    """A stage of a cell in words."""
    return f"{name_row(KernelProfile, row)}, {row['stage']}"


@check("{n} stages, {ROUNDING:.2%} less to {OVERLAP:.1%} more")
def kernels_fill_their_stages(kernel_profile: DataFrame) -> Evidence:
    """The durations of a stage's kernels add up to the time in which it keeps the device busy.

    Where kernels overlap, they add up to more.
    """
    keys = [*CELL, "stage"]
    sums = kernels(kernel_profile).groupby(keys)["ms"].sum()
    busy = select(kernel_profile, metric="stage_busy").set_index(keys)["mean"]
    for _, row in busy.to_frame("busy").join(sums, how="outer").fillna(0).reset_index().iterrows():
        wrong = not (1 - ROUNDING) * row["busy"] <= row["ms"] <= (1 + OVERLAP) * row["busy"]
        yield Case(name_stage(row), wrong, f"kernels {row['ms']:.3f} ms, busy {row['busy']:.3f} ms")


@check("{n} steps")
def stages_make_up_the_step(kernel_profile: DataFrame) -> Evidence:
    """The stages of a step add up to the step, but for what lies between them, with the profiler and without.

    The stages are timed by the device's events, the step by the host's clock.
    """
    disturbed = 0.0 if measured_gpu({"": kernel_profile}) else TOLERANCE["CPU"]
    for part, metric in metrics_of(KernelProfile).items():
        if not (whole := metric.part_of):
            continue
        steps = select(kernel_profile, metric=whole).set_index(CELL)["mean"]
        stages = select(kernel_profile, metric=part).groupby(CELL)["mean"].sum().reindex(steps.index)
        for cell, share in (stages / steps).dropna().items():
            found = f"{part}s are {share:.0%} of {whole}"
            yield Case(in_words(KernelProfile, cell), abs(share - 1) > max(metric.between, disturbed), found)


@check("{n} stages; {most:.0%} busy at most", GPUS_ONLY)
def stages_hold_their_kernels(kernel_profile: DataFrame) -> Evidence:
    """No stage is shorter than its kernels' time.

    That is, without the profiler, than the time for which its kernels keep the device busy under it.
    """
    if not measured_gpu({"": kernel_profile}):
        return
    keys = [*CELL, "stage"]
    busy, stages = (select(kernel_profile, metric=name).set_index(keys)["mean"] for name in ("stage_busy", "stage"))
    for _, row in (busy / stages).dropna().reset_index().iterrows():
        yield Case(name_stage(row), row["mean"] > 1 + BUSY_TOLERANCE, f"{row['mean']:.0%} busy", row["mean"])


def matched(profiled: Series, end_to_end: DataFrame, metric: str) -> DataFrame:
    """Each cell's number that was `profiled`, with that of warm processes of `end_to_end` as `timed`."""
    warm = select(end_to_end, metric=metric, cold_start=False)
    timed = warm.sort_values("warmup").drop_duplicates(SHARED, keep="last").set_index(SHARED)["mean"].rename("timed")
    return profiled.rename("profiled").reset_index().join(timed, on=SHARED, how="inner")


def compare(pairs: DataFrame, tolerance: float, unit: str) -> Evidence:
    """Evidence that each cell's two numbers agree."""
    for _, row in pairs.iterrows():
        error = abs(row["profiled"] / row["timed"] - 1)
        found = f"{row['profiled']:.2f}{unit}, {row['timed']:.2f}{unit}"
        yield Case(name_row(KernelProfile, row), error > tolerance, found, error)


@check(COMPARED, GPUS_ONLY)
def busy_time_is_the_same_elsewhere(kernel_profile: DataFrame, end_to_end: DataFrame) -> Evidence:
    """The device's time in a phase agrees with `end_to_end` within {INSTRUMENTS:.0%}, host-bound or not."""
    busy = select(kernel_profile, metric="stage_busy")
    for metric, stages in STAGES.items():
        profiled = busy[busy["stage"].isin(stages)].groupby(CELL)["mean"].sum()
        yield from compare(matched(profiled, end_to_end, metric), INSTRUMENTS, " ms")


@check(COMPARED, GPUS_ONLY)
def launches_are_the_same_elsewhere(kernel_profile: DataFrame, end_to_end: DataFrame) -> Evidence:
    """A step launches as many kernels in the trace as in `end_to_end`.

    Copies and fills count, too.
    """
    yield from compare(matched(kernels(kernel_profile).groupby(CELL)["calls"].sum(), end_to_end, "launches"), 0, "")
