"""Fully sharded data parallelism among PyTorch's own tools: what fully_shard or one process gives, or one sentence."""

import contextlib
import copy
import io
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from tests.parallel.test_fsdp import assert_same, named
from tests.support.models import Raises
from tests.support.ranks import on_all_ranks
from tests.verify.training import finish, make_batches, momentum, own_parts, small_transformer, take_step, whole

WIDTH = 6


class Mixed(nn.Module):
    """A replicated parameter before the first sharded one, and rows that two ranks cannot share evenly."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def same_everywhere(make, device):
    """A module with the same numbers on all ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().to(device)


def shard_as_pytorch(module):
    mesh = DeviceMesh.from_group(dist.group.WORLD, next(module.parameters()).device.type)
    return fully_shard(module, mesh=mesh)


def ours_and_alone(device, make=Mixed):
    """A model sharded by this project, and on one process."""
    return FullyShardedDataParallel(same_everywhere(make, device)), same_everywhere(make, device)


def inputs(device, steps=1):
    """All ranks' inputs for each step."""
    generator = torch.Generator().manual_seed(0)
    sizes = (3 * dist.get_world_size(), WIDTH)
    return [torch.randn(sizes, generator=generator).to(device) for _ in range(steps)]


def loss(model, x):
    return model(x).square().mean()


def weights(model):
    """Whole, by their names in the bare module."""
    return {name.removeprefix("module."): whole(p.detach()) for name, p in model.named_parameters()}


def gathered(values):
    """A number of each rank, on all ranks."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, values)
    return everyone


class StudentsOptimizer(torch.optim.Optimizer):
    """Number by number, on `data` and `grad.data`, as the course's first assignment asks for AdamW."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = 0.9 * self.state[p].get("v", torch.zeros_like(p.data)) + p.grad.data**2
                p.data -= group["lr"] * p.grad.data / (torch.sqrt(v) + 1e-8)
                self.state[p]["v"] = v


class Everything(nn.Module):
    """Modules of PyTorch that read their parameters in their own ways: these are replicated."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        x = x[:, None]
        x = x + self.attention(x, x, x)[0]
        x = self.convolution(self.recurrent(x)[0].mT).mT
        again = torch.utils.checkpoint.checkpoint(lambda x: self.normed(x) * self.scale, x, use_reentrant=False)
        return again[:, 0]


OPTIMIZERS = {
    "AdamW, foreach": (Mixed, partial(torch.optim.AdamW, foreach=True)),
    "AdamW, fused": (Mixed, partial(torch.optim.AdamW, fused=True)),
    "SGD, foreach": (Mixed, partial(torch.optim.SGD, momentum=0.9, foreach=True)),
    "RMSprop": (Mixed, torch.optim.RMSprop),
    "a student's": (Mixed, StudentsOptimizer),
    "other modules": (Everything, partial(torch.optim.SGD, momentum=0.9)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_all_ranks
def test_optimizers_do_what_they_do_on_one_process(device, optimizer):
    make_model, make_optimizer = OPTIMIZERS[optimizer]
    ours, alone = ours_and_alone(device, make_model)
    optimizers = [make_optimizer(model.parameters(), lr=0.1) for model in (ours, alone)]
    for x in inputs(device, steps=3):
        take_step(ours, optimizers[0], *own_parts([x]))
        take_step(alone, optimizers[1], x)
    assert_same(weights(ours), weights(alone), bound=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@on_all_ranks
def test_an_overflow_on_one_rank_is_skipped_by_all(device, reverse, fused):
    model = FullyShardedDataParallel(same_everywhere(Mixed, device))
    optimizer = torch.optim.AdamW(list(model.parameters())[:: -1 if reverse else 1], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=2)
    scales, moved = [], []
    for overflow in (None, "up.weight", "norm.weight", None, None):
        before = weights(model)
        optimizer.zero_grad()
        scaler.scale(loss(model, *own_parts(inputs(device)))).backward()
        finish(model)
        if overflow == "norm.weight":  # which is replicated
            model.module.norm.weight.grad.to_local().fill_(torch.inf)
        elif overflow and dist.get_rank() == 1:
            model.module.up.weight.grad.to_local()[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(any(not torch.equal(before[name], value) for name, value in weights(model).items()))
    assert gathered((scales, moved)) == [([8.0, 4.0, 2.0, 2.0, 4.0], [True, False, False, True, True])] * 2


class TwoPrecisions(nn.Module):
    """Two layers whose gradients are reduced in one call, with rows that two ranks cannot share evenly."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5, dtype=torch.float16), nn.Linear(3, 5, dtype=dtype)

    def forward(self, x):
        return sum(layer(x.to(layer.weight.dtype)).float() for layer in (self.first, self.second))


@pytest.mark.parametrize(("dtype", "compute_dtype"), [(torch.float32, None), (torch.float16, torch.float16)])
@on_all_ranks
def test_a_mean_in_float16_does_not_overflow_where_its_sum_does(device, dtype, compute_dtype):
    model = nn.Sequential(same_everywhere(lambda: TwoPrecisions(dtype), device))
    fsdp = FullyShardedDataParallel(model, compute_dtype, together=[TwoPrecisions])
    (45_000 * fsdp(torch.ones(1, 3, device=device))).sum().backward()
    finish(fsdp)
    for name, parameter in fsdp.named_parameters():
        assert (whole(parameter.grad) == 45_000).all(), name


@on_all_ranks
def test_a_penalty_on_weights_is_that_of_one_process(device):
    ours, alone = ours_and_alone(device)
    for model in (ours, alone):
        [x] = own_parts(inputs(device)) if model is ours else inputs(device)
        loss(model, x).backward()
        (0.1 * sum(p.square().sum() for p in model.parameters())).backward()
        finish(model)
    gradients = [{name: whole(p.grad) for name, p in m.named_parameters()} for m in (ours.module, alone)]
    assert_same(*gradients, bound=1e-5)
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        (loss(ours, x) + sum(p.square().sum() for p in ours.parameters())).backward()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("source", ["fully_shard", "whole", "ours"])
@on_all_ranks
def test_states_load_and_training_goes_on_with_them(device, source, assign):
    ours, alone = ours_and_alone(device)
    theirs = shard_as_pytorch(same_everywhere(Mixed, device))
    optimizer = momentum(ours.parameters())
    with torch.no_grad():
        for parameter in [*theirs.parameters(), *alone.parameters()]:
            parameter.mul_(2)
    again = FullyShardedDataParallel(copy.deepcopy(alone))
    states = {"fully_shard": theirs.state_dict(), "whole": alone.state_dict(), "ours": again.module.state_dict()}
    result = ours.module.load_state_dict(states[source], assign=assign)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert_same(weights(ours), weights(alone))
    [x] = inputs(device)
    with torch.no_grad():
        assert torch.equal(ours(x), alone(x))
    take_step(ours, optimizer, *own_parts([x]))
    take_step(alone, momentum(alone.parameters()), x)
    assert_same(weights(ours), weights(alone), bound=1e-5)


@on_all_ranks
def test_a_state_with_a_shards_rows_is_refused(device):
    fsdp = FullyShardedDataParallel(nn.Embedding(10, 3).to(device))
    before = weights(fsdp)
    half = nn.Embedding(5, 3).to(device)
    for state in (half.state_dict(), shard_as_pytorch(half).state_dict()):
        with pytest.raises(RuntimeError, match=r"size mismatch for weight: .*\[5, 3\].*\[10, 3\]"):
            fsdp.module.load_state_dict(state)
    assert_same(weights(fsdp), before)


@on_all_ranks
def test_emptied_and_loaded_again(device):
    ours, alone = ours_and_alone(device)
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter.add_(1)
    ours.module.to_empty(device=device)
    ours.module.load_state_dict(alone.state_dict())
    [x] = inputs(device)
    assert torch.equal(ours(x), alone(x))
    assert torch.equal(ours.module(x), alone(x))
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        ours.module.norm(x)


class SharedMemory(nn.Module):
    def __init__(self, device):
        super().__init__()
        # Made on the device: `to` of another device gives each parameter memory of its own.
        self.left, self.right = nn.Linear(3, 3, device=device), nn.Linear(3, 3, device=device)
        self.right.weight = nn.Parameter(self.left.weight.detach())


def compiled_in_place():
    module = nn.Sequential(nn.Linear(3, 3))
    module.compile(backend="eager")
    return module


@on_all_ranks
def test_what_cannot_be_wrapped_is_refused(device):
    bf16, not_cast = torch.bfloat16, r"which a compute_dtype of torch\.bfloat16 does not cast; allowed: "
    bad_embedding = r"^0 is an embedding with sparse=.*; allowed: sparse=False and max_norm"
    for module, compute_dtype, sentence in (
        (Mixed().to("meta"), None, r"^norm\.weight is on the meta device; allowed: "),
        (SharedMemory(device), None, r"^left\.weight and right\.weight share memory; "),
        (shard_as_pytorch(Mixed().to(device)), None, r"^norm\.weight is a DTensor, already sharded; allowed: "),
        (nn.Sequential(nn.MultiheadAttention(4, 2)).to(device), bf16, rf"^0 is a MultiheadAttention, {not_cast}"),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 2)).to(device), bf16, rf"^1 is a Conv1d, {not_cast}"),
        (Mixed(), torch.int8, r"^compute_dtype is torch\.int8; allowed: floating-point dtypes, and None$"),
        (Mixed().requires_grad_(False), None, "no parameter that requires a gradient"),
        (nn.Sequential(nn.Embedding(3, 3, sparse=True)), None, bad_embedding),
        (nn.Sequential(nn.Embedding(3, 3, max_norm=1.0)), None, bad_embedding),
        (compiled_in_place(), None, r"^the module was compiled in place; allowed: compiling its parts in place, or "),
    ):
        with pytest.raises(ValueError, match=sentence):
            FullyShardedDataParallel(module, compute_dtype)


CHANGES = {
    r"^(norm|up)\.weight became torch\.float64 on .* after wrapping; allow": lambda fsdp: fsdp.to(torch.float64),
    r"^(norm|up)\.weight became torch\.float16 on .* after wrapping; a": lambda fsdp: fsdp.module.half(),
    r"^up\.weight was added or replaced after wrapping; allowed: ": lambda fsdp: replace(fsdp.module.up),
    r"^norm\.weight was added or replaced after wrapping; allowed: ": lambda fsdp: replace(fsdp.module.norm),
    r"^up\.weight has a hook of `register_hook`, which would never run: .*; allowed: ": (
        lambda fsdp: fsdp.module.up.weight.register_hook(torch.neg)
    ),
}


def replace(layer):
    layer.weight = nn.Parameter(torch.zeros(layer.weight.shape, device=layer.weight.device))


@on_all_ranks
def test_what_a_wrapped_module_cannot_become_is_refused_by_each_forward_pass(device):
    [x] = inputs(device)
    for sentence, change in CHANGES.items():
        fsdp = FullyShardedDataParallel(Mixed().to(device))
        change(fsdp)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=sentence):
                fsdp(x)


@on_all_ranks
def test_copies_are_refused(device):
    fsdp = FullyShardedDataParallel(small_transformer().to(device))
    block = fsdp.module.blocks[0]
    for copied in (
        lambda: copy.deepcopy(fsdp),
        lambda: copy.deepcopy(fsdp.module),
        lambda: copy.deepcopy(block),
        lambda: torch.optim.swa_utils.AveragedModel(fsdp),
        lambda: torch.save(fsdp, io.BytesIO()),
        lambda: torch.save(fsdp.module, io.BytesIO()),
    ):
        with pytest.raises(
            RuntimeError, match=r"^a FullyShardedDataParallel and its modules cannot be copied or pickled:"
        ):
            copied()
    [batch] = own_parts(make_batches(1, device))
    fsdp(batch[:, :-1])


@on_all_ranks
def test_requires_grad_may_change_after_wrapping(device):
    ours, alone = ours_and_alone(device)
    for frozen in (("up.weight",), ("up.weight", "norm.weight"), ("down.weight", "down.bias", "up.bias"), ()):
        for model in (ours, alone):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.removeprefix("module.") not in frozen)
            model.zero_grad()
            [x] = inputs(device) if model is alone else own_parts(inputs(device))
            loss(model, x).backward()
            finish(model)
        for name, parameter in alone.named_parameters():
            gradient, expected = ours.module.get_parameter(name).grad, parameter.grad
            assert (gradient is None) == (expected is None) == (name in frozen), name
            assert expected is None or torch.allclose(whole(gradient), expected, atol=1e-6), name


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("accumulating", [False, True])
@on_all_ranks
def test_a_batch_can_be_dropped_after_its_backward_pass(device, accumulating, interrupted):
    fsdp = FullyShardedDataParallel(nn.Sequential(*(same_everywhere(Mixed, device) for _ in range(3))))
    good, bad = (own_parts([x])[0] for x in inputs(device, steps=2))
    loss(fsdp, good).backward()
    fsdp.finish_gradient_synchronization()
    expected = [whole(p.grad) for p in fsdp.parameters()]

    def interrupt(module, args):
        return Raises.apply(*args) if interrupted else None

    def bad_pass():
        with fsdp.module[1].register_forward_pre_hook(interrupt):
            result = loss(fsdp, bad)
        with pytest.raises(ValueError, match="a bad batch") if interrupted else contextlib.nullcontext():
            result.backward()

    for _ in range(2):
        with fsdp.no_sync() if accumulating else contextlib.nullcontext():
            bad_pass()
        if not accumulating:
            with pytest.raises(RuntimeError, match=r"^finish_gradient_synch.*\(\) was not .*; allowed: .*zero_grad"):
                fsdp(good)
        fsdp.zero_grad()
        loss(fsdp, good).backward()
        fsdp.finish_gradient_synchronization()
        for parameter, gradient in zip(fsdp.parameters(), expected, strict=True):
            assert torch.equal(whole(parameter.grad), gradient)


@on_all_ranks
def test_finishing_after_the_optimizers_zero_grad_gives_the_gradients_of_the_pass(device):
    fsdp = FullyShardedDataParallel(same_everywhere(Mixed, device))
    optimizer = momentum(fsdp.parameters())
    [x] = own_parts(inputs(device))
    gradients = []
    for forgotten in (False, True):
        optimizer.zero_grad()
        loss(fsdp, x).backward()
        if forgotten:
            optimizer.zero_grad()
        fsdp.finish_gradient_synchronization()
        gradients.append([whole(p.grad) for p in fsdp.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@dataclass(frozen=True)
class Output:
    states: list
    label: str


class Block(nn.Module):
    """Takes and returns a dataclass."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return Output([torch.tanh(self.inner(value.states[0]))], "found")


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        value = Output([x], "given")
        for block in self.blocks:
            value = block(value)
        return value


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@on_all_ranks
def test_blocks_may_return_dataclasses(device, dtype):
    fsdp = FullyShardedDataParallel(same_everywhere(Blocks, device), dtype, together=(Block,))
    alone = same_everywhere(Blocks, device)
    for _ in range(2):
        fsdp.zero_grad()
        alone.zero_grad()
        [x] = inputs(device)
        assert fsdp(*own_parts([x])).states[0].dtype == (dtype or torch.float32)
        fsdp(*own_parts([x])).states[0].float().mean().backward()
        finish(fsdp)
        alone(x).states[0].mean().backward()
    for name, parameter in alone.named_parameters():
        gradient = whole(fsdp.module.get_parameter(name).grad)
        assert torch.allclose(gradient, parameter.grad, atol=1e-6 if dtype is None else 1e-2), name


@on_all_ranks
def test_hooks_after_a_gradient_run_for_all_parameters(device):
    fsdp = FullyShardedDataParallel(Mixed().to(device))
    seen = []
    for name, parameter in fsdp.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.shape)))
    [x] = own_parts(inputs(device))
    loss(fsdp, x).backward()
    fsdp.finish_gradient_synchronization()
    assert sorted(seen) == sorted((name, p.shape) for name, p in fsdp.module.named_parameters())


@on_all_ranks
def test_each_group_trains_its_own_model(device):
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    module = Mixed().to(device)
    alone = copy.deepcopy(module)  # another one on each rank
    ours = FullyShardedDataParallel(module, process_group=groups[dist.get_rank()])
    assert all(isinstance(p, DTensor) and p.device_mesh.size() == 1 for p in ours.parameters())
    optimizers = [momentum(model.parameters()) for model in (ours, alone)]
    for x in inputs(device, steps=2):
        for model, optimizer in zip((ours, alone), optimizers, strict=True):
            take_step(model, optimizer, x)
        ours.clip_grad_norm_(1.0)
    assert_same(ours.gather_full_parameters(), named(alone))
    assert len(set(gathered(alone.up.weight.sum().item()))) == dist.get_world_size()
