"""Wrappers, libraries and baselines that do something other than their label says are detected."""

import contextlib
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from cs336_systems.accounting import contenders as contenders_accounting
from cs336_systems.accounting.contenders import Sent, differences
from cs336_systems.benchmarks.comparison.builders import ours as builders
from cs336_systems.benchmarks.comparison.contender_runs import ContenderRuns
from cs336_systems.benchmarks.comparison.messages import Messages
from cs336_systems.benchmarks.comparison.observed import Watch, watched
from cs336_systems.benchmarks.comparison.training import run
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.data_parallel import CONTENDERS
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel import ownership
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from tests.support.ranks import on_all_ranks

SHAPE = {"size": "odd:d_model=24,d_ff=37,num_layers=3,num_heads=2", "context": 7, "batch_size": 3, "vocab_size": 101}
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


def at_its_best(model, megabytes=25):
    return DistributedDataParallel(
        model, bucket_cap_mb=megabytes, gradient_as_bucket_view=True, broadcast_buffers=False
    )


def hooked(model, hook):
    """PyTorch's wrapper at its best, but for what a hook does."""
    wrapped = at_its_best(model)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def exchanged(state, bucket):
    """The usual all-reduce, after an exchange that nobody needs."""
    part = bucket.buffer()[:2]
    dist.all_to_all_single(torch.empty_like(part), part)
    return allreduce_hook(state, bucket)


def kept(model):
    """PyTorch's, which keeps its weights for the backward pass."""
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    return fully_shard(model)


def frozen(model, contender, cell, **hyperparameters):
    return BucketedDataParallel(model, 100), AdamW(model.parameters(), **hyperparameters | {"lr": 0.0})


handicapped = partial(builders.whole, wrap=partial(hooked, hook=doubled))
in_fp16 = partial(builders.whole, wrap=partial(hooked, hook=fp16_compress_hook))
exchanging = partial(builders.whole, wrap=partial(hooked, hook=exchanged))
in_small_buckets = partial(builders.whole, wrap=partial(at_its_best, megabytes=0.01))
not_resharded = partial(builders.whole, wrap=kept)
in_fp32 = partial(builders.whole, wrap=FullyShardedDataParallel)
casting = partial(builders.whole, wrap=Casting)
WRONG = {
    # Experiment, whose label it has, what it is, and what is said of it.
    "a baseline that communicates": ("data_parallel", "none", "naive", "30 × all_reduce in synchronization, and none"),
    "flat as naive": ("data_parallel", "naive", "flat", "1 × all_reduce in synchronization, and 30"),
    "naive as flat": ("data_parallel", "flat", "naive", "30 × all_reduce in synchronization, and 1 "),
    "overlapped as naive": ("data_parallel", "naive", "overlapped", "0 × all_reduce in synchronization"),
    "one without communication": ("data_parallel", "naive", "none", "0 × all_reduce"),
    "another dtype": (
        "data_parallel",
        "ddp_view 25",
        in_fp16,
        "39840 bytes by all_reduce in passes, and 79680 declared",
    ),
    "another bucket size": ("data_parallel", "ddp_view 25", in_small_buckets, "× all_reduce in passes"),
    "buffers broadcast": ("data_parallel", "ddp_view 25", "ddp 25", "1 × broadcast in passes, and none declared"),
    "another collective": ("data_parallel", "ddp_view 25", exchanging, "1 × alltoall_base_ in passes, and none"),
    "copies": ("data_parallel", "ddp_view 25", handicapped, "additional times; declared: 1"),
    "no update": ("data_parallel", "bucketed 100", frozen, "it does not change the weights"),
    "whole as sharded": ("optimizer_sharding", "sharded", "unsharded", " in update, and "),
    "sharded as whole": ("optimizer_sharding", "unsharded", "sharded", " in update, and none"),
    "other views": ("optimizer_sharding", "zero_redundancy", "zero_redundancy_view", "2 × broadcast in update, and 30"),
    "by block as by layer": ("fsdp", "fsdp", "fsdp_blocks", "8 × all_gather in passes, and 44 declared"),
    "weights kept": ("fsdp", "fully_shard", not_resharded, "4 × all_gather in passes, and 7 "),
    "weights in fp32": ("fsdp", "fsdp", in_fp32, "139968 bytes by all_gather"),
    "one unit": ("fsdp", "fully_shard", casting, "× all_gather in passes, and 7 "),
}
IN_BF16 = ("weights in fp32", "one unit")


def make_runs(device, experiment="data_parallel", **changes):
    torch.manual_seed(3)
    return ContenderRuns(make_cell(EXPERIMENTS[experiment], SHAPE | ROUNDS | changes), device)


def find(experiment, key):
    return next(contender for contender in EXPERIMENTS[experiment].contenders if contender.key == key)


@pytest.mark.parametrize("wrong", WRONG)
@on_all_ranks
def test_what_does_something_else_than_it_declares_is_not_timed(device, wrong):
    experiment, label, what, why = WRONG[wrong]
    runs = make_runs(device, experiment, precision="bf16" if wrong in IN_BF16 else "fp32")
    contender = find(experiment, label)
    if isinstance(what, str):
        contender = replace(contender, builder=find(experiment, what).builder)
        built = contextlib.nullcontext()
    else:
        built = mock.patch("cs336_systems.benchmarks.comparison.builders.own.load_path", return_value=what)
    with built, pytest.raises(Unavailable, match=r"^not timed: it ") as raised:
        runs.turn(contender)
    assert why in str(raised.value)
    assert not runs.observer.observed


@on_all_ranks
def test_a_baseline_that_trains_on_less_is_not_timed(device):
    runs = make_runs(device)
    with mock.patch.object(runs, "tokens", runs.tokens[:1]), pytest.raises(Unavailable, match=r"7 tokens .* has 21"):
        runs.turn(CONTENDERS[0])
    runs.turn(CONTENDERS[0])
    assert [*runs.observer.observed] == [CONTENDERS[0]]


@on_all_ranks
def test_other_models_are_held_to_what_needs_no_closed_form(device):
    runs = make_runs(device, model="tests.support.models:ConvolutionLM")
    baseline, naive, flat, *_ = CONTENDERS
    for contender in (baseline, replace(naive, builder=flat.builder)):
        runs.turn(contender)
    with pytest.raises(Unavailable, match="it sends 1 × all_reduce in synchronization, and none declared"):
        runs.turn(replace(baseline, title="flat", builder=flat.builder))


def test_closed_forms_of_sharded_buckets_know_their_settings():
    ours = contenders_accounting.ALIGNMENT, contenders_accounting.EVEN, contenders_accounting.PATIENCE
    assert ours == (ownership.ALIGNMENT, ownership.EVEN, ownership.PATIENCE)


@on_all_ranks
def test_messages_of_numbers_are_counted(device):
    """By PyTorch's flight recorder, unless there were more than the 2000 that it keeps."""
    ranks = dist.get_world_size()
    part, whole = torch.ones(5, device=device), torch.ones(5 * ranks, device=device)
    messages = Messages()
    dist.all_reduce(part)
    dist.broadcast(part.bfloat16(), 0)
    dist.all_gather([*whole.chunk(ranks)], part)
    dist.all_reduce(torch.ones(3, dtype=torch.int64, device=device))  # a flag's
    dist.barrier()
    assert messages.count() == (3, 20 + 10 + 20 * ranks)
    messages.restart()
    for _ in range(2001):
        dist.all_reduce(part)
    assert messages.count() is None
    messages.restart()
    dist.all_reduce(part)
    assert messages.count() == (1, 20)


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


def test_compiled_code_runs_after_a_step_was_observed():
    ran = []

    def backend(graph, inputs):
        return lambda *args: ran.append(graph) or graph(*args)

    layer, x = torch.compile(nn.Linear(2, 2), backend=backend), torch.ones(1, 2)
    phases = {"forward": lambda: layer(x)}
    run(phases)
    watched(phases)
    ran.clear()
    run(phases)
    assert len(ran) == 1
