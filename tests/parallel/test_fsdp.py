"""Fully sharded data parallelism: the right weights, to the bit, for all that a model and a step can be."""

import copy
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from cs336_systems.attention import flash_attention
from cs336_systems.model import RMSNorm, TransformerBlock
from cs336_systems.parallel.data_parallel import FlatDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.training import compile_blocks
from tests.support.models import CheckpointedLM, ReentrantLM
from tests.support.ranks import on_all_ranks
from tests.verify.training import (
    VOCABULARY,
    backward,
    make_batches,
    momentum,
    own_parts,
    small_transformer,
    train,
    whole,
)

pytestmark = pytest.mark.numeric


class Linear(nn.Module):
    """A linear map of another package: it shares only its name and its weight's name with PyTorch's."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) / d_in)

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class OddModel(nn.Module):
    """Tied, frozen, shared, unused and transposed weights, biases, and fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.frozen_before = nn.Linear(5, 5, bias=False).requires_grad_(False)
        self.norm = RMSNorm(5)
        self.unused = nn.Linear(5, 3)
        self.block = nn.Sequential(nn.Linear(5, 13), nn.Tanh(), nn.Linear(13, 5, bias=False))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.shared = Linear(5, 5)
        self.one_row = nn.Linear(5, 1)
        self.transposed = nn.Linear(5, 5)
        self.transposed.weight = nn.Parameter(self.transposed.weight.detach().clone().mT)
        self.head = nn.Linear(5, VOCABULARY)
        self.head.weight = self.embedding.weight
        self.table = nn.Linear(5, 3, bias=False)  # its weight is used by the model itself, and so not sharded
        self.same_table = self.table.weight

    def forward(self, token_ids):
        x = self.norm(self.frozen_before(self.embedding(token_ids)))
        x = x + self.block(x).to(x.dtype) * self.scale.to(x.dtype)
        x = x + self.frozen(self.shared(torch.tanh(self.shared(x))))
        x = x * torch.sigmoid(self.one_row(x)) + self.transposed(x)
        x = x + nn.functional.linear(x, self.same_table.to(x.dtype)).sum(-1, keepdim=True)
        return self.head(x)


def compiled_transformer():
    """A block compiled, so that nothing can be done between its layers."""
    model = small_transformer()
    model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager", fullgraph=True)
    return model


def compiled_in_place():
    model = small_transformer()
    compile_blocks(model, backend="aot_eager", fullgraph=True)
    return model


COMPILED = {"compiled": compiled_transformer, "compiled in place": compiled_in_place}
NOT_COMPILED = {
    "odd": OddModel,
    "transformer": small_transformer,
    "checkpointed": partial(small_transformer, checkpoint_segment=2),
    "checkpointed, each block": partial(small_transformer, CheckpointedLM),
    "checkpointed, reentrant": partial(small_transformer, ReentrantLM),
    "flash": partial(small_transformer, attention=flash_attention),
}
MODELS = NOT_COMPILED | COMPILED


def assert_same(ours, theirs, bound=None):
    """Whether tensors by name have the same bits, or differ by at most `bound` of the largest number."""
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        if bound is None:
            assert torch.equal(ours[name], tensor), name
        else:
            assert (ours[name] - tensor).abs().max() <= bound * tensor.abs().max(), name


def named(module):
    return {name: parameter.detach() for name, parameter in module.named_parameters(remove_duplicate=False)}


def whole_parameters(fsdp):
    """By the names that they have where no block is compiled."""
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in fsdp.gather_full_parameters().items()}


def wrap_and_copy(name, device, **options):
    """A sharded model, and one that is not, neither checkpointed nor compiled, with the same weights.

    Its weights are contiguous, as those gathered are: a product with a transposed matrix may round otherwise.
    """
    fsdp = FullyShardedDataParallel(MODELS[name]().to(device), **options)
    bare = MODELS[name if name in ("odd", "flash") else "transformer"]().to(device)
    for parameter in bare.parameters():
        parameter.data = parameter.data.contiguous()
    bare.load_state_dict(whole_parameters(fsdp), strict=False)
    return fsdp, bare


TOGETHER = (TransformerBlock, nn.Sequential)


def check_training(device, name, together):
    """Compare the weights after some steps with data parallelism's, to the bit."""
    torch._dynamo.reset()
    fsdp, alone = wrap_and_copy(name, device, together=together)
    replicated = FlatDataParallel(alone)
    batches = own_parts(make_batches(4, device))
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(fsdp, batches, set_to_none=not together)
    train(replicated, batches, set_to_none=not together)
    assert_same(whole_parameters(fsdp), named(alone))


@pytest.mark.parametrize(
    ("name", "together"),
    [*((name, ()) for name in NOT_COMPILED), *((name, TOGETHER) for name in NOT_COMPILED if name != "flash")],
)
@on_all_ranks
def test_training_is_that_of_data_parallelism_to_the_bit(device, name, together):
    check_training(device, name, together)


@on_all_ranks
def test_weights_that_are_complex_or_integers_are_not_cast(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.complex = nn.Linear(3, 5, bias=False, dtype=torch.complex64)
            self.numbers = nn.Embedding(5, 3)
            self.numbers.weight = nn.Parameter(2**24 + torch.arange(15).view(5, 3), requires_grad=False)

        def forward(self, x):
            return self.complex(x.cfloat()).abs().square().sum() * self.numbers(torch.ones_like(x, dtype=int)).sum()

    alone = Model().to(device)
    fsdp = FullyShardedDataParallel(copy.deepcopy(alone), torch.bfloat16)
    replicated = FlatDataParallel(alone)
    for model in (fsdp, replicated):
        model(torch.full((2, 3), dist.get_rank() + 1.0, device=device)).backward()
        model.finish_gradient_synchronization()
    assert_same({"complex": fsdp.complex.weight.grad.full_tensor()}, {"complex": alone.complex.weight.grad})


def cast_layers(module, dtype):
    """For each parameter of a layer its cast copy, the same one where it is tied."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Embedding | Linear)]
    return {parameter: parameter.to(dtype) for layer in layers for parameter in layer.parameters()}


def mean_over_ranks(gradient):
    everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, gradient.contiguous())
    return sum(everyone) / len(everyone)


def check_copies(device, name, together):
    """Compare training, evaluation, and training with weights changed between steps, if copies gather the weights."""
    torch._dynamo.reset()
    fsdp, alone = wrap_and_copy(name, device, together=together, symmetric_memory=True)
    replicated = FlatDataParallel(alone)
    for step in range(2):
        batches = own_parts(make_batches(3, device))
        for model in (fsdp, replicated):
            train(model, batches)
        with torch.no_grad():
            outputs = [model(batches[0][:, :-1]) for model in (fsdp, replicated) for _ in range(2)]
            assert all(torch.equal(outputs[0], output) for output in outputs)
            for parameter in (*fsdp.parameters(), *alone.parameters()):
                parameter.mul_(1 - 0.1 * step)
        assert_same(whole_parameters(fsdp), named(alone))


@pytest.mark.parametrize(("name", "together"), [("odd", ()), ("transformer", TOGETHER), ("checkpointed", ())])
@on_all_ranks
def test_copies_gather_the_weights_of_each_step(device, name, together):
    check_copies(device, name, together)


@pytest.mark.parametrize(("name", "symmetric"), [("odd", False), ("odd", True), ("checkpointed", False)])
@on_all_ranks
def test_compute_dtype_casts_before_it_communicates(device, name, symmetric):
    fsdp, bare = wrap_and_copy(name, device, compute_dtype=torch.bfloat16, symmetric_memory=symmetric)
    optimizers = [momentum(model.parameters()) for model in (fsdp, bare)]
    shards = {name for name, p in fsdp.module.named_parameters() if any(p is weight.shard for weight in fsdp._weights)}
    for batch in own_parts(make_batches(3, device)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(fsdp, batch)
        fsdp.finish_gradient_synchronization()
        cast = cast_layers(bare, torch.bfloat16)
        for tensor in cast.values():
            if tensor.requires_grad:
                tensor.retain_grad()
        everything = {name: cast.get(p, p) for name, p in bare.named_parameters(remove_duplicate=False)}
        backward(partial(functional_call, bare, everything, tie_weights=False), batch)
        for parameter_name, parameter in bare.named_parameters():
            if parameter.grad is not None:
                # What is sharded is reduced in bf16, the rest in fp32.
                gradient = cast[parameter].grad if parameter_name in shards else parameter.grad
                parameter.grad = mean_over_ranks(gradient).to(parameter.dtype)
        for optimizer in optimizers:
            optimizer.step()
        assert_same(fsdp.gather_full_parameters(), named(bare))
    for parameter in fsdp.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is None or parameter.grad.dtype == torch.float32


@on_all_ranks
def test_norms_compute_in_the_dtype_of_their_weights(device):
    torch.manual_seed(0)
    bf16, x = torch.bfloat16, 100 * torch.randn(64, 4, device=device)
    bare = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GroupNorm(3, 6), nn.Linear(6, 5)).to(device)
    fsdp = FullyShardedDataParallel(copy.deepcopy(bare), bf16)
    outputs = []
    for norm in fsdp.module[1:3]:
        norm.register_forward_hook(lambda norm, inputs, output: outputs.append(output))
    fsdp(x).sum().backward()
    first, layer_norm, group_norm, _ = bare
    normalized = layer_norm(copy.deepcopy(first).to(bf16)(x.to(bf16)).float())
    assert torch.equal(outputs[0], normalized)
    assert torch.equal(outputs[1], group_norm(normalized))


@on_all_ranks
def test_accumulated_gradients_are_sums_of_means(device):
    fsdp, bare = wrap_and_copy("odd", device)
    for _ in range(2):
        fsdp.zero_grad()
        expected = Counter()
        *first, last = own_parts(make_batches(3, device))
        with fsdp.no_sync():
            for batch in first:
                backward(fsdp, batch)
        backward(fsdp, last)
        fsdp.finish_gradient_synchronization()
        for batch in (*first, last):
            bare.zero_grad()
            backward(bare, batch)
            for name, parameter in bare.named_parameters():
                if parameter.grad is not None:
                    expected[name] = expected[name] + mean_over_ranks(parameter.grad)
        for name, parameter in fsdp.module.named_parameters():
            if parameter.grad is None:
                assert name not in expected
            elif parameter not in fsdp.sharded_weights:  # added up before the mean
                assert torch.allclose(parameter.grad.to_local(), expected[name], rtol=1e-5, atol=1e-7), name
            else:
                assert torch.equal(parameter.grad.full_tensor(), expected[name]), name


def torchs_clipping(model, **options):
    return nn.utils.clip_grad_norm_(model.parameters(), **options)


@pytest.mark.parametrize(
    ("clip", "norm_type"),
    [
        *((FullyShardedDataParallel.clip_grad_norm_, norm_type) for norm_type in (2.0, 1.0, 3.5, float("inf"))),
        *((torchs_clipping, norm_type) for norm_type in (2.0, 3.5)),  # PyTorch refuses inf where a rank has no rows
    ],
)
@on_all_ranks
def test_clipping_is_clipping_of_the_whole_models_gradient(device, clip, norm_type):
    fsdp, bare = wrap_and_copy("odd", device)
    replicated = FlatDataParallel(bare)
    [batch] = own_parts(make_batches(1, device))
    for model in (fsdp, replicated):
        backward(model, batch)
        model.finish_gradient_synchronization()
    expected = nn.utils.clip_grad_norm_(bare.parameters(), max_norm=0.1, norm_type=norm_type)
    norm = clip(fsdp, max_norm=0.1, norm_type=norm_type)
    assert whole(norm).item() == pytest.approx(expected.item(), rel=1e-6)
    assert expected > 0.1
    for name, parameter in fsdp.module.named_parameters():
        gradient = bare.get_parameter(name).grad
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            assert torch.allclose(whole(parameter.grad), gradient, rtol=1e-5), name
    if dist.get_rank() == 1:
        fsdp.module.shared.weight.grad.to_local().fill_(torch.nan)
    assert whole(clip(fsdp, max_norm=0.1, norm_type=norm_type)).isnan(), "of one rank's rows"
