"""Training with sharded optimizers in turns: what is measured, memory to the byte, and that no turn leaves a trace."""

import gc
from dataclasses import replace
from itertools import product
from unittest import mock

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.benchmarks.comparison.agreement import free_memory
from cs336_systems.benchmarks.comparison.contender_runs import ContenderRuns
from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.benchmarks.comparison.memory import storage_bytes
from cs336_systems.experiments.optimizer_sharding import CONTENDERS, MOMENTS, OptimizerSharding
from cs336_systems.parallel import symmetric_memory_optimizer
from tests.support.faults import broken_laws, tables_of
from tests.support.ranks import on_all_ranks

ODD = "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3"
CELL = OptimizerSharding(size=ODD, context=7, batch_size=3, vocab_size=101, rounds=2, warmup=1, steps=2)
OWN = "mine=tests.support.own:ShardedOptimizer"
OPTIONS = f"--context 7 --batch-size 3 --vocab-size 101 --rounds 2 --warmup 1 --steps 2 --implementation {OWN}"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rows(request, launch_ranks):
    """All rows of a launch, by contender, moment, part, kind and metric."""
    measured = launch_ranks("optimizer_sharding", request.param, "--size", ODD, *OPTIONS.split())
    return {(row.contender, row.moment, row.part, row.kind, row.metric): row for row in measured}


def test_every_contender_is_timed_by_step_and_phase(rows):
    for name in (*(contender.name for contender in CONTENDERS), "mine"):
        assert rows[name, "", "", "", "step"].n == 4
        phases = {key[4] for key in rows if key[0] == name} & {"forward", "backward", "optimizer"}
        assert len(phases) == 3
        assert ((name, "", "", "", "synchronization") in rows) == (not name.startswith("zero"))


def test_memory_is_that_of_closed_forms(rows):
    tables = tables_of("optimizer_sharding", rows.values())
    for sentence in ("a rank's parameters", "the ranks' shards", "an equal share", "tensors fit into"):
        assert broken_laws("optimizer_sharding", tables, sentence) == []
    held = {key[:3] for key in rows if key[4] == "held"}
    names = [*(contender.name for contender in CONTENDERS), "mine"]
    assert held == set(product(names, MOMENTS, ("parameters", "gradients", "optimizer_state")))
    on_gpu = next(iter(rows.values())).gpu_count
    assert on_gpu or all(rows["", "", "", "", name].status == "skipped" for name in ("allocated", "peak_memory"))


@on_all_ranks
def test_a_check_leaves_no_trace(device):
    """Neither of the contenders, which it passes, nor in the numbers that are drawn after it."""
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
