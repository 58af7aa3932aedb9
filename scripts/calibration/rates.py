"""Fit the time model to the recorded steps, and write its weights with the errors of all closed forms.

Launch: python -m scripts.calibration.rates, which writes cs336_systems/fit/recorded.json.

The time is linear in the weights, so they are a least-squares fit of relative errors, each at least its smallest
possible value. The fit uses whole steps, and the parts of a step that were measured alone: matmuls, attention, norms,
the update.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from pandas import DataFrame

from cs336_systems.accounting.step_work import DEFAULT, LEAST, UNKNOWN, Work, part_work, step_work
from cs336_systems.experiments.training_ladder import TOP
from cs336_systems.fit.gpus import rates_of
from cs336_systems.fit.recorded import PATH, read
from cs336_systems.measure.gpus import listed
from scripts.views.data import load_recorded, measured_gpu, select
from scripts.views.steps import step_table
from scripts.views.training_ladder import PARTS
from scripts.views.what_fits import HELD_BACK, evaluated, measured_steps, predictions, summary

RECORDED = Path("recorded/nvidia-h200/raw")
OTHERS = sorted(set(Path("recorded").glob("*/raw")) - {RECORDED})
"""Recorded machines that are not used in the fit."""
KINDS = list(asdict(Work()))
DIGITS = 4


def observations(tables: Mapping[str, DataFrame]) -> Iterator[tuple[Work, float]]:
    """The work and the milliseconds of whole steps, and of parts alone."""
    steps = measured_steps(tables).dropna(subset=["time"])
    for _, row in steps[steps["experiment"] != HELD_BACK].iterrows():
        yield step_work(row["setting"], rates_of(listed(row["gpu"]))), row["time"]
    parts = select(tables["training_ladder"], metric="floor", status="ok")
    for _, row in parts[parts["work"].isin(PARTS)].iterrows():
        yield part_work(row["work"], TOP.setting(row), rates_of(listed(row["gpu"]))), row["median"]


def fit(observed: Sequence[tuple[Work, float]]) -> dict[str, float]:
    """The least-squares weights, none below its minimum; weights without observations are assumed."""
    matrix = numpy.array([[getattr(work, kind) for kind in KINDS] for work, _ in observed])
    times = numpy.array([milliseconds / 1e3 for _, milliseconds in observed])
    relative = matrix / times[:, None]
    least = numpy.array([LEAST.get(kind, 1.0) for kind in KINDS])
    free = relative.any(axis=0)
    extra = at_least_zero(relative[:, free], 1 - relative @ least)
    weights = least.copy()
    weights[free] += extra
    assumed = {kind: UNKNOWN.get(kind, DEFAULT) for kind in KINDS}
    return {kind: float(weights[at]) if free[at] else assumed[kind] for at, kind in enumerate(KINDS)}


def at_least_zero(matrix: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Non-negative least squares: the active set method of Lawson & Hanson 1974, chapter 23."""
    solution = numpy.zeros(matrix.shape[1])
    passive = numpy.zeros(matrix.shape[1], dtype=bool)
    while not passive.all():
        gradient = matrix.T @ (values - matrix @ solution)
        gradient[passive] = -numpy.inf
        if gradient.max() <= 1e-9:
            break
        passive[int(gradient.argmax())] = True
        while True:
            candidate = numpy.zeros_like(solution)
            candidate[passive] = numpy.linalg.lstsq(matrix[:, passive], values, rcond=None)[0]
            negative = passive & (candidate <= 0)
            if not negative.any():
                solution = candidate
                break
            step = (solution[negative] / (solution[negative] - candidate[negative])).min()
            solution += step * (candidate - solution)
            passive &= solution > 1e-12
    return solution


def facts(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Contents of the file that `cs336_systems.fit.recorded` reads."""
    content = model_of(tables) | {"weights": rounded(fit(list(observations(tables))))}
    content["launch_seconds"] = launch_seconds(tables["end_to_end"])
    content |= {"memory_errors": {}, "time_errors": {}}
    content |= errors_of(predictions(tables, read(content)))
    others = [load_recorded(folder) for folder in OTHERS]
    content["others"] = [model_of(other) | errors_of(predictions(other, read(content))) for other in others]
    return content


def errors_of(predicted: DataFrame) -> dict[str, Any]:
    """The errors of memory and time, by kind of step."""
    errors: dict[str, Any] = {}
    for what in ("memory", "time"):
        by_kind = evaluated(predicted, what).groupby("kind")[f"{what}_error"]
        errors[f"{what}_errors"] = {kind: rounded(summary(each)) for kind, each in by_kind}
    return errors


def model_of(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The measured GPU model and its memory."""
    memory = int(max(table["gpu_memory"].max() for table in tables.values() if len(table)))
    return {"gpu": measured_gpu(tables), "memory": memory}


def launch_seconds(end_to_end: DataFrame) -> float:
    """The median of host-bound steps' time per kernel."""
    steps = step_table(end_to_end)
    paced = steps[steps["host_bound"].astype(bool) & (steps["launches"] > 0)]
    return float(f"{(paced['step'] / paced['launches']).median() / 1e3:.2g}")


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers rounded to few digits, so that diffs of a file are readable."""
    return {key: value if isinstance(value, int) else float(f"{value:.{DIGITS}g}") for key, value in values.items()}


if __name__ == "__main__":
    PATH.write_text(json.dumps(facts(load_recorded(RECORDED)), indent=1) + "\n", encoding="utf-8")
