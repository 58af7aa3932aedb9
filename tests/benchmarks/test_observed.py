"""What contenders are held to: wrappers, peers and baselines that do something else than their label says are found."""

from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.accounting import contenders as contenders_accounting
from cs336_systems.accounting.contenders import Sent, differences
from cs336_systems.benchmarks import data_parallel, fsdp, optimizer_sharding
from cs336_systems.benchmarks.contest.contenders import Contender, contenders
from cs336_systems.benchmarks.contest.observed import Watch
from cs336_systems.benchmarks.contest.optimizer_trial import OptimizerTrial
from cs336_systems.benchmarks.contest.optimizers import CONTENDERS, unsharded
from cs336_systems.benchmarks.contest.sharded_contenders import sharded_contenders
from cs336_systems.benchmarks.contest.sharded_trial import ShardedTrial
from cs336_systems.benchmarks.contest.trial import Trial
from cs336_systems.experiments.data_parallel import FLOOR, DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel import ownership
from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
)
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.variations import Bf16WireDataParallel
from tests.support.ranks import on_all_ranks

SHAPE = {"size": "odd:d_model=24,d_ff=37,num_layers=3,num_heads=3", "context": 7, "batch_size": 3, "vocab_size": 101}
ROUNDS = {"rounds": 1, "warmup": 0, "steps": 1}


class Casting(nn.Module):
    """Trains in another precision than it is asked for."""

    def __init__(self, model):
        super().__init__()
        self.module = fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=None))

    def forward(self, tokens):
        return self.module(tokens)


def doubled(state, bucket):
    """The usual all-reduce, after two copies that nobody needs."""
    bucket.set_buffer(bucket.buffer().clone().clone())
    return allreduce_hook(state, bucket)


def handicapped(model):
    """PyTorch's wrapper at its best, but for the copies."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True, broadcast_buffers=False)
    wrapped.register_comm_hook(None, doubled)
    return wrapped


def in_small_buckets(model):
    """PyTorch's wrapper with other buckets than it is called after."""
    return DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True, broadcast_buffers=False)


def not_resharded(model):
    """PyTorch's, which keeps its weights for the backward pass."""
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    return fully_shard(model)


def by_block(model):
    """Ours, with each block as a unit."""
    return FullyShardedDataParallel(model, together=(type(model.blocks[0]),))


bucketed = partial(BucketedDataParallel, bucket_size_mb=100)
WRONG = {
    "a baseline that communicates": (
        {"wrapper": FLOOR, "wrap": NaiveDataParallel},
        "30 × all_reduce in synchronization, and none",
    ),
    "flat as naive": ({"wrapper": "naive", "wrap": FlatDataParallel}, "1 × all_reduce in synchronization, and 30"),
    "naive as flat": ({"wrapper": "flat", "wrap": NaiveDataParallel}, "30 × all_reduce in synchronization, and 1 "),
    "overlapped as naive": ({"wrapper": "naive", "wrap": OverlappedDataParallel}, "0 × all_reduce in synchronization"),
    "one without communication": ({"wrapper": "naive", "wrap": nn.Module.train}, "0 × all_reduce"),
    "another dtype on the wire": (
        {"wrapper": "bucketed", "bucket_mb": 100, "wrap": partial(Bf16WireDataParallel, bucket_size_mb=100)},
        "39840 bytes by all_reduce in passes, and 79680 declared",
    ),
    "another bucket size": (
        {"wrapper": "ddp_view", "bucket_mb": 25, "wrap": in_small_buckets},
        "× all_reduce in passes",
    ),
    "buffers broadcast": (
        {"wrapper": "ddp_view", "bucket_mb": 25, "wrap": DistributedDataParallel},
        "1 × broadcast in passes, and none declared",
    ),
    "copies": (
        {"wrapper": "ddp_view", "bucket_mb": 25, "wrap": handicapped},
        "times besides, and 1 times declared",
    ),
    "one that declares nothing": ({"wrapper": "new", "wrap": bucketed}, "does not declare what it sends"),
}
"""Contenders of data parallelism, and what is said of them."""


def make_trial(device, **changes):
    torch.manual_seed(3)
    return Trial(DataParallelTraining(**SHAPE, **ROUNDS, tried=True, **changes), device)


def floor_of(trial):
    return next(contenders(trial.cell, trial.optimizer))


@pytest.mark.parametrize("wrong", WRONG)
@on_all_ranks
def test_what_sends_otherwise_than_it_declares_is_not_timed(device, wrong):
    traits, why = WRONG[wrong]
    trial = make_trial(device)
    trial.turn(floor_of(trial))
    trial.witness.seen.clear()
    with pytest.raises(Unavailable, match=r"^not timed: it ") as raised:
        trial.turn(Contender(**traits))
    assert why in str(raised.value)


@on_all_ranks
def test_a_baseline_that_does_less_is_not_timed(device):
    trial = make_trial(device)
    with (
        mock.patch.object(trial, "tokens", trial.tokens[:1]),
        pytest.raises(Unavailable, match=r"7 tokens .* has 21"),
    ):
        trial.turn(floor_of(trial))
    with (
        mock.patch.object(trial.optimizer, "step"),
        pytest.raises(Unavailable, match="it leaves weights as they are"),
    ):
        trial.turn(floor_of(trial))
    trial.turn(floor_of(trial))
    assert trial.witness.seen.keys() == {FLOOR}


WRONGLY_SHARDED = {
    "by block as by layer": (
        {
            "wrapper": "fsdp",
            "wrap": lambda model: FullyShardedDataParallel(model, None, together=(type(model.blocks[0]),)),
        },
        "fp32",
        "8 × all_gather in passes, and 44 declared",
    ),
    "weights kept": ({"wrapper": "fully_shard", "wrap": not_resharded}, "fp32", "4 × all_gather in passes, and 7 "),
    "weights in fp32": ({"wrapper": "fsdp", "wrap": FullyShardedDataParallel}, "bf16", "139968 bytes by all_gather"),
    "one unit": ({"wrapper": "fully_shard", "wrap": Casting}, "bf16", "× all_gather in passes, and 7 "),
}


@pytest.mark.parametrize("wrong", WRONGLY_SHARDED)
@on_all_ranks
def test_what_shards_otherwise_than_it_declares_is_not_timed(device, wrong):
    traits, precision, why = WRONGLY_SHARDED[wrong]
    cell = FullyShardedTraining(**SHAPE, **ROUNDS, precision=precision)
    honest = {contender.wrapper: contender for contender in sharded_contenders(cell, device)}
    contender = replace(honest[traits["wrapper"]], **traits)
    with pytest.raises(Unavailable) as raised:
        ShardedTrial(cell, device).turn(contender)
    assert why in str(raised.value)


@on_all_ranks
def test_optimizers_with_exchanged_labels_are_not_timed(device):
    trial = OptimizerTrial(OptimizerSharding(**SHAPE, **ROUNDS), device)
    by_name = {contender.name: contender for contender in CONTENDERS}
    for one, other in [("sharded", "unsharded"), ("zero_redundancy", "zero_redundancy_view")]:
        for label, maker in [(one, other), (other, one)]:
            with pytest.raises(Unavailable, match=r"^not timed: it sends .* in update, and "):
                trial.turn(replace(by_name[maker], name=label))

    def frozen(model, **hyperparameters):
        wrapped, optimizer = unsharded(model, **hyperparameters)
        optimizer.param_groups[0]["lr"] = 0.0
        return wrapped, optimizer

    with pytest.raises(Unavailable, match="it leaves weights as they are"):
        trial.turn(replace(by_name["unsharded"], make=frozen))


@on_all_ranks
def test_other_models_are_held_to_what_needs_no_closed_form(device):
    trial = make_trial(device, model="tests.support.models:ConvolutionLM")
    floor, naive, flat, *_ = contenders(trial.cell, trial.optimizer)
    for contender in (floor, replace(naive, wrap=flat.wrap)):
        trial.turn(contender)
    with pytest.raises(Unavailable, match="it sends 1 × all_reduce in synchronization, and none declared"):
        make_trial(device, model="tests.support.models:ConvolutionLM").turn(replace(floor, wrap=flat.wrap))


def test_all_contenders_declare_what_they_send():
    """The lists without torch and those that the benchmarks go through are of the same contenders, in one order."""
    model, cell = nn.Linear(2, 2), DataParallelTraining(tried=True)
    built = list(data_parallel.contenders(cell, torch.optim.AdamW(model.parameters())))
    made = [*fsdp.sharded_contenders(FullyShardedTraining(), torch.device("cpu"))]
    assert [(" ".join(filter(None, c.details.values())), c.foreign) for c in built] == keys(DataParallelTraining)
    assert [(c.wrapper, c.foreign) for c in made] == keys(FullyShardedTraining)
    assert [(c.name, c.foreign) for c in optimizer_sharding.CONTENDERS] == keys(OptimizerSharding)


def test_closed_forms_of_sharded_buckets_know_their_settings():
    ours = contenders_accounting.ALIGNMENT, contenders_accounting.EVEN, contenders_accounting.PATIENCE
    assert ours == (ownership.ALIGNMENT, ownership.EVEN, ownership.PATIENCE)


def keys(experiment):
    return [(declared.key, declared.foreign) for declared in experiment.contenders]


def test_what_operators_write_is_counted():
    x, y = torch.ones(5), torch.ones(5)
    with Watch() as watch:
        z = x.view(5)  # nothing
        z.add_(y)  # 20 bytes
        torch.empty(100)  # nothing
        torch._foreach_copy_([x, y], [y, x])  # 40
        torch.split(x + y, 2)  # 20, and views
    assert watch.written == 80
    assert not watch.calls


def test_differences_are_told_in_one_sentence():
    sends = (
        Sent(part="passes", what=("all_gather", "broadcast"), calls=(2, 3), bytes=(10, 10)),
        Sent(part="passes", what=(), calls=(7, 7), bytes=(9, 9)),
    )
    assert not list(differences(sends, {("passes", "all_gather"): (1, 4), ("passes", "broadcast"): (1, 6)}))
    assert list(differences(sends, {("passes", "all_gather"): (4, 10)})) == [
        "4 × all_gather/broadcast in passes, and 2 to 3 declared"
    ]
    assert list(differences(sends, {("passes", "broadcast"): (2, 11), ("update", "broadcast"): (1, 1)})) == [
        "11 bytes by all_gather/broadcast in passes, and 10 declared",
        "1 × broadcast in update, and none declared",
    ]
