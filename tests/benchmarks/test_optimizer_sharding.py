"""Training with sharded optimizers in turns: what is measured, memory to the byte, and that no turn leaves a trace."""

import gc
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.benchmarks.comparison.agreement import free_memory
from cs336_systems.benchmarks.comparison.contender_runs import ContenderRuns
from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.benchmarks.comparison.memory import storage_bytes
from cs336_systems.experiments.contender import Contender
from cs336_systems.experiments.optimizer_sharding import CONTENDERS, MOMENTS, OptimizerSharding
from cs336_systems.parallel import symmetric_memory_optimizer
from cs336_systems.record.measurement import parse_samples
from tests.support.ranks import on_all_ranks

ODD = "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3"
CELL = OptimizerSharding(size=ODD, context=7, batch_size=3, vocab_size=101, rounds=2, warmup=1, steps=2)
OWN = "mine=tests.support.own:ShardedOptimizer"
OPTIONS = f"--context 7 --batch-size 3 --vocab-size 101 --rounds 2 --warmup 1 --steps 2 --implementation {OWN}"
WEIGHTS = 3 * (4 * 24**2 + 3 * 24 * 37 + 2 * 24) + 2 * 101 * 24 + 24
TENSORS = 3 * 9 + 3


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rows(request, launch_ranks):
    """All rows of a launch, by contender, moment, part, kind and metric."""
    measured = launch_ranks("optimizer_sharding", request.param, "--size", ODD, *OPTIONS.split())
    return {(row.contender, row.moment, row.part, row.kind, row.metric): row for row in measured}


def mib(rows, contender, moment, metric, part=""):
    """Bytes on each rank, to five digits."""
    return [2**20 * sample for sample in parse_samples(rows[contender.name, moment, part, "", metric].samples)]


def near(count):
    return pytest.approx(count, rel=1e-4)


def test_every_contender_is_timed_by_step_and_phase(rows):
    for name in (*(contender.name for contender in CONTENDERS), "mine"):
        assert rows[name, "", "", "", "step"].n == 4
        phases = {key[4] for key in rows if key[0] == name} & {"forward", "backward", "optimizer"}
        assert len(phases) == 3
        assert ((name, "", "", "", "synchronization") in rows) == (not name.startswith("zero"))


MINE = Contender(name="mine", title="mine", builder=OWN.partition("=")[2], own=True)


@pytest.mark.parametrize("contender", [*CONTENDERS, MINE], ids=lambda contender: contender.name)
def test_memory_is_counted_to_the_byte(rows, contender):
    initialized, *trained = MOMENTS
    assert mib(rows, contender, initialized, "held", "gradients") == [0, 0]
    assert mib(rows, contender, initialized, "held", "optimizer_state") == [0, 0]
    padded = pytest.approx(4 * WEIGHTS, rel=0.05, abs=256 * TENSORS)
    assert mib(rows, contender, initialized, "held", "parameters") == [padded, padded]
    for moment in trained:
        gradients = mib(rows, contender, moment, "held", "gradients")
        states = mib(rows, contender, moment, "held", "optimizer_state")
        copies = 2 if contender.name == "unsharded" else 1
        assert sum(states) == near(copies * (8 * WEIGHTS + 4 * TENSORS))
        if contender.name.startswith("sharded_gradients"):
            assert sum(gradients) == pytest.approx(4 * WEIGHTS, rel=0.05, abs=256 * TENSORS)
            assert max(gradients) < 0.7 * 4 * WEIGHTS
        else:
            assert min(gradients) == max(gradients) == pytest.approx(4 * WEIGHTS, rel=0.01, abs=16 * TENSORS)
        assert max(states) < 0.7 * 8 * WEIGHTS or copies == 2


def test_the_allocator_holds_what_tensors_need_or_says_why_it_is_not_asked(rows):
    if not next(iter(rows.values())).gpu_count:
        for metric in ("allocated", "peak_memory", "device_busy"):
            assert rows["", "", "", "", metric].status == "skipped"
        return
    for contender in CONTENDERS:
        for moment in MOMENTS:
            parts = [
                mib(rows, contender, moment, "held", part) for part in ("parameters", "gradients", "optimizer_state")
            ]
            in_use, peak = (mib(rows, contender, moment, metric) for metric in ("allocated", "peak_memory"))
            for rank in range(2):
                assert (1 + 1e-3) * in_use[rank] >= sum(part[rank] for part in parts)
                assert peak[rank] >= in_use[rank]
        assert rows[contender.name, "", "", "", "communication"].mean > 0


@on_all_ranks
def test_a_check_leaves_no_trace(device):
    """Neither of the contenders, all of which it passes, nor in the numbers that are drawn after it."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of its own imports

    runs = ContenderRuns(replace(CELL, precision="bf16"), device)  # the launch's is fp32
    drawn = torch.get_rng_state()
    for contender in CONTENDERS:
        runs.check(contender)
    assert torch.equal(torch.get_rng_state(), drawn)
    free_memory(device)
    left = (DistributedDataParallel, ZeroRedundancyOptimizer)
    assert not any(isinstance(alive, left) for alive in gc.get_objects())


def test_a_storage_is_counted_once():
    whole = torch.empty(10)
    assert storage_bytes([whole[:3], whole[5:], torch.empty(2, dtype=torch.int64)]) == 40 + 16


@on_all_ranks
def test_without_symmetric_memory_the_comparison_goes_on(device):
    unreachable = mock.patch.object(
        symmetric_memory_optimizer,
        "allocate",
        side_effect=RuntimeError("the ranks cannot reach each other's memory: far"),
    )
    over_symmetric_memory = next(contender for contender in CONTENDERS if contender.name == "sharded_symmetric_memory")
    with unreachable, mock.patch.object(OptimizerSharding, "contenders", (CONTENDERS[0], over_symmetric_memory)):
        rows = measure(CELL, device)
    (row,) = [row for row in rows if row.details.get("contender") == over_symmetric_memory.name]
    assert (row.metric, row.status) == ("step", "skipped")
    assert row.message == "the ranks cannot reach each other's memory: far"
    assert any(row.metric == "step" and row.status == "ok" for row in rows)
