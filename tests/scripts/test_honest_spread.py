"""Differences that GPUs honestly have from launch to launch fail no self-check."""

import numpy as np

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import parameters
from scripts.checks import HONEST
from scripts.stages.self_checks import all_checks
from tests.support.faults import multiply, recorded

CLOCKED = ("ms", "s", "us")


def test_no_check_fails_where_each_cell_was_faster_or_slower():
    """By the spread of unchanged runs: a cell's times alike but the total, with which samples of the clock agree."""
    rng = np.random.default_rng(0)
    others = {name: table.copy() for name, table in recorded().items()}
    for name, table in others.items():
        timed = table[table["unit"].isin(CLOCKED) & (table["metric"] != WALL) & (table["status"] == "ok")]
        cells = timed.groupby(parameters(EXPERIMENTS[name])).ngroup()
        signs = rng.choice([-1, 1], cells.nunique())
        for sign in (-1, 1):
            multiply(table, timed.index[signs[cells] == sign], 1 + HONEST * sign)
    failed = [check for check in all_checks(others) if check.outcome == "failed"]
    assert [(check.check, check.detail) for check in failed] == []
