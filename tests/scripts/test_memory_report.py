"""The memory profile's self-checks and figures on recorded rows."""

import numpy
import pytest

from cs336_systems.record.measurement import WHOLE_CELL, parse_samples
from scripts.checks.elsewhere import both_instruments_agree
from scripts.checks.laws import laws_hold
from scripts.figures.memory_timelines import stage_levels
from scripts.views.data import frame, select
from scripts.views.memory import SHOWN, compared_context, profiled
from tests.support.faults import recorded


@pytest.fixture
def table():
    """The recorded profile, to be changed."""
    return recorded()["memory_profile"].copy()


CELL = {"context": 256, "precision": "bf16", "attention": "plain", "mode": "train_step"}


def test_another_model_need_not_have_the_closed_forms(table):
    table.loc[table["category"] == "gradients", "mean"] = 1.0
    table["model"] = "my.model:LM"
    checks = [check for check in laws_hold(recorded() | {"memory_profile": table}) if check.outcome == "not applicable"]
    assert [check.check.split()[0] for check in checks] == ["parameters,", "the"]


def test_what_was_timed_under_other_settings_is_not_compared(table):
    profiles = {"memory_profile": table, "kernel_profile": frame("kernel_profile", [])}
    for others in ({"batch_size": 8}, {"compiled": True}):
        timed = {"end_to_end": recorded()["end_to_end"].assign(**others)}
        assert both_instruments_agree(profiles | timed).outcome == "not applicable"


def test_the_compared_context_has_every_kind_of_step(table):
    rows = select(profiled(table), attention="plain")
    assert compared_context(rows) == 512
    lost = (rows["context"] == 512) & (rows["mode"] == "forward") & (rows["precision"] == "fp32")
    rows = rows[~lost | (rows["metric"] == WHOLE_CELL)]
    assert compared_context(rows) == 256
    assert compared_context(select(rows, precision="bf16")) is None


def test_a_figures_levels_are_the_kept_points_with_small_categories_in_one(table):
    rows = select(table, **CELL, metric="active", stage="forward")
    levels = stage_levels(rows, SHOWN)
    points = numpy.array([parse_samples(samples) for samples in rows["samples"]]) / 1024
    assert levels.sum(axis=0) == pytest.approx(points.sum(axis=0))
    assert levels[-1] == pytest.approx(points[~rows["category"].isin(SHOWN)].sum(axis=0))
    assert stage_levels(select(table, **CELL, metric="active", stage="optimizer"), SHOWN).shape == (len(SHOWN), 2)
