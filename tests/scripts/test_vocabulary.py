"""The names that rows may have are those that benchmarks write and that readers are told."""

import pytest
import torch

from cs336_systems.benchmarks.contest import contenders, optimizers, sharded_contenders
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.experiments.registry import EXPERIMENTS
from scripts.views import data_parallel, fsdp, optimizer_sharding

WRITTEN = {
    DataParallelTraining: lambda kind: [
        contender.wrapper for contender in contenders.contenders(kind(tried=True), torch.optim.SGD([torch.zeros(1)]))
    ],
    FullyShardedTraining: lambda kind: [
        contender.wrapper for contender in sharded_contenders.sharded_contenders(kind(size="nano"), torch.device("cpu"))
    ],
    OptimizerSharding: lambda _: [contender.name for contender in optimizers.CONTENDERS],
}
TOLD = {
    DataParallelTraining: data_parallel.WRAPPERS,
    FullyShardedTraining: fsdp.WRAPPERS,
    OptimizerSharding: optimizer_sharding.CONTENDERS,
}


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
def test_contenders_have_one_set_of_names(kind):
    column = "contender" if kind is OptimizerSharding else "wrapper"
    assert list(kind.vocabulary[column]) == list(TOLD[kind])
    assert set(kind.vocabulary[column]) == set(WRITTEN[kind](kind))


def test_what_is_held_and_gathered_has_one_set_of_names():
    assert list(OptimizerSharding.vocabulary["part"]) == list(optimizer_sharding.HELD)
    assert set(fsdp.COLLECTIVES) < set(FullyShardedTraining.vocabulary["kind"])
    assert set(data_parallel.WORK) < set(DataParallelTraining.vocabulary["kind"])


def test_a_vocabulary_is_of_columns_that_there_are():
    for kind in EXPERIMENTS.values():
        assert set(getattr(kind, "vocabulary", {})) <= set(kind.details)
