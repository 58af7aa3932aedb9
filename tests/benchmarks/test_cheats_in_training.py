"""Wrappers, sharded optimizers and FSDP that do less while they are timed get no time, but a reason."""

import re
from unittest import mock

import pytest
import torch

from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.registry import EXPERIMENTS
from tests.support.cheats_in_training import CHEATS
from tests.support.ranks import on_all_ranks

CELL = {
    "size": "odd:d_model=24,d_ff=37,num_layers=2,num_heads=3",
    "context": 7,
    "batch_size": 3,
    "vocab_size": 101,
    "rounds": 1,
    "warmup": 1,
    "steps": 2,
}
HONEST = {
    "data_parallel": (
        "tests.support.own:DDP",
        "torch.nn.parallel:DistributedDataParallel",
        "tests.support.own:Bucketed",
    ),
    "optimizer_sharding": (
        "tests.support.own:ShardedOptimizer",
        "torch.distributed.optim:ZeroRedundancyOptimizer",
        "cs336_systems.parallel.sharded_optimizer:ShardedOptimizer",
    ),
    "fsdp": (
        "tests.support.own:FSDP",
        "tests.support.own:fully_sharded",
        "cs336_systems.parallel.fsdp:FullyShardedDataParallel",
    ),
}
"""Implementations that do their work: small ones, PyTorch's and this project's."""


def steps(experiment, device, paths, **changes):
    """The row of each implementation's step, by path, measured next to the first contender of an experiment."""
    kind = EXPERIMENTS[experiment]
    names = {path: f"{path.partition(':')[2]}_{number}" for number, path in enumerate(paths)}
    text = ",".join(f"{name}={path}" for path, name in names.items())
    torch.manual_seed(0)  # ranks begin alike, as in a launch
    with mock.patch.object(kind, "contenders", kind.contenders[:1]):
        rows = measure(make_cell(kind, CELL | {"implementation": text} | changes), device)
    found = {row.details[kind.details[0]]: row for row in rows if row.metric == "step"}
    assert found.pop(kind.contenders[0].name).status == "ok"
    return {path: found.pop(name) for path, name in names.items()}


@pytest.mark.parametrize("experiment", CHEATS)
@on_all_ranks
def test_what_does_less_while_it_is_timed_gets_no_time(device, experiment):
    cheats = {f"tests.support.cheats_in_training:{name}": why for name, why in CHEATS[experiment].items()}
    found = steps(experiment, device, cheats)
    for path, row in found.items():
        assert re.fullmatch(f"not timed: (?:{cheats[path]})", row.message), (path, row.message)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("experiment", HONEST)
@on_all_ranks
def test_what_does_its_work_gets_its_time(device, experiment, precision):
    paths = [path for path in HONEST[experiment] if (path, precision) != ("tests.support.own:FSDP", "bf16")]
    found = steps(experiment, device, paths, precision=precision)
    for path, row in found.items():
        assert row.status == "ok", (path, row.message)
