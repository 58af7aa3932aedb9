"""Memory of sharded optimizers on worked-out counts."""

import pytest

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.answers.optimizer_state_sharding import answers
from scripts.answers.optimizer_state_sharding_accounting import schemes_table
from scripts.views.data import frame, select
from scripts.views.earlier import earlier_cells
from scripts.views.optimizer_sharding import memory, peaks
from tests.samples import rows_of

CELLS = [(2, "fp32"), (2, "bf16"), (4, "bf16")]
GPU_CELL = {"processes": 2, "precision": "bf16"}


@pytest.fixture(scope="module")
def h200():
    """The cells recorded on H200s. Not to be changed."""
    cells = [OptimizerSharding(processes=ranks, precision=precision) for ranks, precision in CELLS]
    return frame("optimizer_sharding", rows_of(cells))


def doctor(table, column, value, **wanted):
    table = table.copy()
    index = select(table, **wanted).index
    assert len(index)
    table.loc[index, column] = value
    return table


def test_memory_is_that_of_the_rank_that_has_most(h200):
    cell = {"contender": "sharded", "moment": "after_update", **GPU_CELL}
    table = doctor(h200, "samples", "30000 40000", metric="allocated", **cell)
    table = doctor(table, "samples", "9000 7000", metric="held", part="optimizer_state", **cell)
    row = select(memory(table), **cell).iloc[0]
    assert (row["allocated"], row["optimizer_state"]) == (40000, 7000)
    assert row["rest"] == pytest.approx(40000 - row["parameters"] - row["gradients"] - 7000)
    assert (row["least_state"], row["most_state"], row["whole_state"]) == (7000, 9000, 16000)
    peak = select(peaks(memory(doctor(h200, "samples", "1 99999", metric="peak_memory", **cell))), **GPU_CELL)
    assert select(peak, contender="sharded")["peak"].item() == 99999


def test_the_fullest_rank_is_that_with_most_state_whatever_else_it_has(h200):
    cell = {"contender": "sharded", "moment": "after_update", "processes": 4, "precision": "bf16"}
    table = doctor(h200, "samples", "30000 30000 30000 40000", metric="allocated", **cell)
    table = doctor(table, "samples", "3000 5000 4000 4000", metric="held", part="optimizer_state", **cell)
    (sharded,) = [
        row for row in answers({"optimizer_sharding": table})["evenness"].evidence[0].table.rows if row[0] == "sharded"
    ]
    assert sharded[-3:] == ["5000.0", "18.75", "31.25"]


def test_rows_of_earlier_code_are_found(h200):
    h200 = h200.assign(revisions="optimizer_sharding=1")
    assert not earlier_cells(OptimizerSharding, h200)
    older = doctor(h200, "revisions", "optimizer_sharding=0", processes=4)
    assert earlier_cells(OptimizerSharding, older) == {"4 GPUs, bf16"}


def test_closed_forms():
    # xl has 1.998 · 10^9 weights: 16 of them 29.8 GiB; an all-reduce over 2 sends 8.0 GB.
    table = schemes_table((2, 4))
    assert [row[0] for row in table.rows] == ["data parallel", "sharded optimizer", "ZeRO-1", "ZeRO-2"]
    assert [row[2] for row in table.rows] == ["29.8", "22.3", "22.3", "18.6"]
    assert [row[5] for row in table.rows] == ["7.99", "12.0", "7.99", "7.99"]
