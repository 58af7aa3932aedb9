"""Numbers that the report computes of sharded training, against numbers worked out anew."""

from dataclasses import replace

import pytest

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.compare.speed import SAME
from cs336_systems.experiments.fsdp import CONTENDERS, FullyShardedTraining
from cs336_systems.sizes import SIZES
from scripts.answers.fsdp import against_pytorch
from scripts.views.comparison import contenders
from scripts.views.data import frame, select
from scripts.views.fsdp import by_block
from tests.samples import rows_of
from tests.support.tables import UNEVEN, took, training

CELL = FullyShardedTraining(size="2.7B", processes=2, precision="fp32")


def find(name):
    return next(contender for contender in CONTENDERS if contender.name == name)


def trained(*cells, **setting):
    return training(FullyShardedTraining, ("wrapper",), cells, **setting)


def test_exposed_communication_leaves_the_optimizer_out():
    table = frame("fsdp", rows_of([CELL, replace(CELL, size="10B", precision="bf16")]))
    rows = contenders(FullyShardedTraining, table)
    cell = select(rows, size="2.7B").set_index("contender")
    baseline, ours = cell.loc["none"], cell.loc["fsdp"]
    assert ours["optimizer"] < 0.6 * baseline["optimizer"]
    longer = ours["median"] - baseline["median"] + baseline["optimizer"] - ours["optimizer"]
    assert ours["exposed"] == pytest.approx(longer, abs=0.02 * baseline["median"])
    assert select(rows, size="10B")["exposed"].isna().all()


def test_the_peak_of_2_7b_on_two_ranks():
    """Against the sum of what is there at the loss, in fp32, where most activations are."""
    baseline, own = (peak(find(name).setting(CELL, on_gpu=False)).total for name in ("none", "fsdp"))
    whole = 4 * (32 * (4 * 2560**2 + 3 * 2560 * 10240 + 2 * 2560) + 2 * 10_000 * 2560 + 2560)
    block = BlockActivations(shape=SIZES["2.7B"], batch_size=4, context=512, precision="fp32", attention="plain")
    passing = 3 * 4 * 2560 * 10240  # gathered: gate, up and down
    at_loss = 1.5 * whole + 32 * block.saved_bytes + 4 * 4 * 2048 * 10_000 + passing
    assert at_loss <= own * (1 + 1e-3)
    assert own < at_loss + 4 * 2560 * 10_000 + 2 * block.saved_bytes
    assert baseline - own == pytest.approx(1.5 * whole - passing, rel=0.01)


@pytest.mark.parametrize("each", [1, 7])
def test_units_are_grouped_by_block(each):
    """The embedding by itself, then so many units per block, then the head; nano has two blocks."""
    layers = SIZES["nano"].num_layers
    count = 1 + each * layers + 1
    needed = [10.0 * place for place in range(count)]
    # The embedding's weights come 1 ms late, the others' 2 ms early; each unit begins 1.5 ms after it could.
    ends = [needed[0] + 1.0, *(ready - 2.0 for ready in needed[1:])]
    times = {"gather_begins": ends, "gather_ends": ends, "needed": needed, "begins": [ready + 1.5 for ready in needed]}
    table = trained({"fsdp": took(100.0, **times)})
    found = by_block(table, contenders(FullyShardedTraining, table).iloc[0])
    assert list(found.index) == list(range(layers + 2))
    assert list(found["lead"]) == [-1.0, *[2.0] * (layers + 1)]
    assert list(found["late"]) == [1.0, *[0.0] * (layers + 1)]
    assert list(found["pause"]) == [1.5, *[1.5 * each] * layers, 1.5]


def test_the_gain_over_pytorch_is_of_cells_that_tell_it():
    faster, slower = ({"fsdp": took(ms), "fully_shard": took(100.0)} for ms in (80.0, 125.0))
    scatters = {"fsdp": took(99.0, UNEVEN), "fully_shard": took(100.0, UNEVEN)}

    def gain(*cells):
        return against_pytorch(contenders(FullyShardedTraining, trained(*cells)))

    assert gain(faster, scatters)[0].ratio == pytest.approx(1.25)
    assert gain(faster, slower)[0].ratio == pytest.approx((1.25 + 0.8) / 2)
    found, cell = gain(scatters)
    assert found.verdict == SAME
    assert cell == "nano, 2 GPUs, fp32"
    assert gain({"fsdp": took(80.0)})[0].ratio is None
