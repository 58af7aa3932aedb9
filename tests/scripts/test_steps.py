"""Measured steps as one row per cell, and precisions side by side: computed anew from recorded rows."""

import pytest

from cs336_systems.compare.speed import HOST_BOUND
from cs336_systems.record.measurement import parse_samples
from scripts.answers.benchmarking_mixed_precision import precision_pairs
from scripts.views.data import frame, select
from scripts.views.steps import most_complete, steady, step_table
from tests.samples import planned_cells, planned_rows


@pytest.fixture(scope="module")
def sound():
    """Steps on an H200."""
    return frame("end_to_end", planned_rows("end_to_end", "handout"))


USUAL = {"compiled": False, "attention": "plain", "cold_start": False, "warmup": 5, "mode": "train_step"}


def median(table, metric, **wanted):
    """Of the one row that has these values, of a usual cell."""
    (found,) = select(table, **(USUAL | wanted), metric=metric)["median"]
    return found


def test_every_measured_cell_is_one_row(sound):
    steps = step_table(sound)
    assert len(steps) == (sound["metric"] == "step").sum() < len(planned_cells("end_to_end", "handout"))
    cell = {"size": "medium", "context": 256, "precision": "bf16"}
    (row,) = [row for _, row in steps.iterrows() if all(row[key] == value for key, value in (USUAL | cell).items())]
    assert row["forward + backward"] == median(sound, "forward", **cell) + median(sound, "backward", **cell)
    assert row["busy"] == median(sound, "device_busy", **cell) / median(sound, "step", **cell)
    assert row["host_bound"] == (row["busy"] < HOST_BOUND)
    (samples,) = select(sound, **(USUAL | cell), metric="step")["samples"]
    assert row["samples"] == parse_samples(samples)
    assert list(dict.fromkeys(steps["label"])) == ["small", "medium", "large", "xl", "2.7B", "10B"]


def test_steps_of_cold_processes_are_not_steady(sound):
    steps = step_table(sound)
    assert steps["cold_start"].any()
    assert not steady(steps)["cold_start"].any()
    assert set(steady(steps)["warmup"]) == {5}


def test_the_most_complete_step_stands_for_a_cell(sound):
    kinds = most_complete(steady(step_table(sound))).groupby("label")["mode"].unique()
    assert list(kinds["10B"]) == ["forward_backward"]
    assert list(kinds["small"]) == ["train_step"]


def test_precisions_are_paired_by_cell(sound):
    steps = select(most_complete(steady(step_table(sound))), compiled=False, attention="plain")
    cell = {"size": "2.7B", "context": 512}
    (pair,) = [row for _, row in select(precision_pairs(steps), **cell).iterrows()]
    for gain, phases in (("gain", ["forward", "backward"]), ("device_gain", ["forward_busy", "backward_busy"])):
        fp32, bf16 = (
            sum(median(sound, phase, precision=name, **cell) for phase in phases) for name in ("fp32", "bf16")
        )
        assert pair[gain] == pytest.approx(fp32 / bf16)
    assert pair["host_bound"] == select(steps, **cell)["host_bound"].any()
