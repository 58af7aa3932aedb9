"""Completeness of experiments: metrics, settings, measured rows and documentation next to their modules."""

from dataclasses import astuple

import pytest

from cs336_systems.experiments.metrics import COMMON, DETAILS, METRICS
from cs336_systems.experiments.registry import EXPERIMENTS, KINDS
from cs336_systems.record.measurement import COMMON_UNITS
from tests.samples import measured, planned_cells

KEEP = "python -m scripts.bundle.promote results/cpu tests/samples"
WHERE = "cs336_systems/experiments/metrics.py"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_metric_has_a_meaning(kind):
    assert kind.name in METRICS, f"{kind.name} has no entry in METRICS of {WHERE}: say what each of its metrics means"
    said = METRICS[kind.name]
    for name, metric in said.items():
        assert metric.meaning, f"METRICS[{kind.name!r}][{name!r}] has no meaning"
        assert not metric.part_of or metric.unit == said[metric.part_of].unit, name
    missing = set(kind.details) - DETAILS.keys()
    assert not missing, f"DETAILS of {WHERE} does not say what the columns {missing} of {kind.name} mean"


def test_nothing_is_said_of_what_is_not_there():
    assert METRICS.keys() <= KINDS.keys()
    assert DETAILS.keys() == {column for kind in KINDS.values() for column in kind.details}
    assert {name: metric.unit for name, metric in COMMON.items()} == COMMON_UNITS
    assert all(set(getattr(kind, "vocabulary", {})) <= set(kind.details) for kind in KINDS.values())


@pytest.mark.parametrize("kind", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_each_experiment_has_measured_rows(kind):
    kept = measured(kind.name, on_gpu=False)
    missing = [cell for cell in planned_cells(kind.name, "smoke") if astuple(cell) not in kept]
    assert not missing, f"tests/samples has no rows of {missing[0]}: `snakemake {kind.name}`, then `{KEEP}`"
