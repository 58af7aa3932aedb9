"""Self-checks of the predictions of `python -m cs336_systems.fit`."""

from collections.abc import Mapping

from pandas import DataFrame

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.fit.recorded import ELSEWHERE, MEMORY_WITHIN, TIME_WITHIN
from cs336_systems.fit.verdict import outcome, recorded_on
from cs336_systems.record.measurement import WHOLE_CELL
from scripts.checks import RUN_TO_RUN, Case, Cases, check, name_row
from scripts.views.cells import cell_of
from scripts.views.what_fits import PREDICTED, evaluated, predictions

FAR = 0.04
"""Largest difference of any peak: for models so small that the allocator's blocks matter."""
SHARE = 0.95
"""Share of the peaks within MEMORY_WITHIN."""
ON_GPUS = "peak memory is counted on GPUs only"


def predicted(tables: Mapping[str, DataFrame]) -> DataFrame:
    """A row per measured step, with its predictions."""
    return predictions(tables)


@check("{n} step{s}; at most {most:.1%}", ON_GPUS)
def memory_is_predicted(predicted: DataFrame) -> Cases:
    """Peak memory is predicted within {FAR:.0%} for all steps, within {MEMORY_WITHIN:.0%} for {SHARE:.0%} of them."""
    rows = evaluated(predicted, "memory")
    share = (rows["memory_error"].abs() <= MEMORY_WITHIN).mean()
    for _, row in rows.iterrows():
        error = float(abs(row["memory_error"]))
        said = f"{row['memory']:.0f} MiB, {row['memory_predicted']:.0f} predicted"
        yield Case(row["cell"], error > FAR or (error > MEMORY_WITHIN and share < SHARE), said, error)


@check("{n} step{s}; at most {most:.1%}", "no device-bound step of a GPU with listed rates was timed")
def time_is_predicted(predicted: DataFrame) -> Cases:
    """A device-bound step's time is predicted within {TIME_WITHIN:.0%}, or {ELSEWHERE:.0%} on an unrecorded GPU.

    RUN_TO_RUN is added, because a run may be slower or faster than the recorded ones.
    """
    for _, row in evaluated(predicted, "time").iterrows():
        error = float(abs(row["time_error"]))
        within = TIME_WITHIN if recorded_on(row["gpu"]) else ELSEWHERE
        said = f"{row['time']:.1f} ms, {row['time_predicted']:.1f} predicted"
        yield Case(row["cell"], error > (1 + within) * (1 + RUN_TO_RUN) - 1, said, error)


@check("{n} cell{s}", "no step was measured on a GPU")
def what_ran_fits(tables: Mapping[str, DataFrame], predicted: DataFrame) -> Cases:
    """No step that ran is predicted to exceed the GPU's memory, and no step that ran out of memory is predicted to
    fit.
    """
    for _, row in predicted.iterrows():
        wrong = outcome(row["setting"], row["gpu_memory"]) == "does not fit"
        yield Case(row["cell"], wrong, "it ran")
    for name in PREDICTED:
        lost = tables[name]
        lost = lost[(lost["metric"] == WHOLE_CELL) & (lost["status"] == "oom") & (lost["gpu"] != "")]
        for _, row in lost.iterrows():
            steps = cell_of(EXPERIMENTS[name], row).training_steps().values()
            fits = any(outcome(step, row["gpu_memory"]) == "fits" for step in steps)
            yield Case(name_row(name, row), fits, "it ran out of memory")
