"""The fused Transformer against the plain one: plain, interpreted (test_interpreted.py) and on a GPU."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from cs336_systems.attention import flash_attention
from cs336_systems.attention.operators import empty_output
from cs336_systems.model import ROPE_THETA, TransformerLM
from cs336_systems.sizes import parse_size
from cs336_systems.training.fused_model import FusedTransformerLM, fuse
from tests.support.models import CheckpointedLM, with_random_norms
from tests.support.operators import Operators
from tests.training.interpreted import INTERPRETED, assert_close

VOCABULARY, CONTEXT = 61, 16


def build(device="cpu", dtype=torch.float32, size="nano", context=CONTEXT, **options) -> TransformerLM:
    torch.manual_seed(0)
    with torch.device(device):
        model = TransformerLM(VOCABULARY, context, rope_theta=ROPE_THETA, **vars(parse_size(size)), **options)
    return with_random_norms(model).to(dtype)


def make_batch(device="cpu", sequence=13, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (2, sequence + 1), generator=generator).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


def gradients_of(model, *batches):
    model.zero_grad(set_to_none=True)
    for batch in batches:
        loss_of(model, batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def twin(model, **options) -> FusedTransformerLM:
    return fuse(copy.deepcopy(model), **options)


def relative_errors(got, exact):
    return {name: ((got[name].double() - exact[name]).norm() / exact[name].norm()).item() for name in exact}


@pytest.mark.numeric
@pytest.mark.parametrize("sequence", [1, 13])
@pytest.mark.parametrize("keep_hidden", [True, False])
def test_fp32_logits_and_gradients_are_those_of_the_model(keep_hidden, sequence, device):
    model = build(device)
    fused, batch = twin(model, keep_hidden=keep_hidden), make_batch(device, sequence)
    torch.testing.assert_close(fused(batch[0]), model(batch[0]), rtol=1e-4, atol=1e-5)
    want, got = gradients_of(model, batch), gradients_of(fused, batch)
    assert got.keys() == want.keys()
    for name in want:
        # In a sequence of one, queries and keys have no gradient but rounding errors.
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.numeric
@pytest.mark.parametrize("autocast", [False, True])
def test_bf16_errors_are_not_above_those_of_the_model(autocast, device):
    """Against the same weights in float64: other roundings, but not worse ones."""
    model, batch = build(device).bfloat16().float(), make_batch(device)
    assert not worse_gradients(model if autocast else model.bfloat16(), batch, device, autocast)


@pytest.mark.numeric
@pytest.mark.gpu
def test_flash_attention_on_heads_of_80():
    model = build("cuda", torch.bfloat16, size="wide:d_model=640,d_ff=1720,num_layers=2,num_heads=8", context=600)
    exact_attention = model.blocks[0].attention.attention
    for block in model.blocks:
        block.attention.attention = flash_attention
    assert not worse_gradients(model, make_batch("cuda", 600), "cuda", False, exact_attention)


def worse_gradients(model, batch, device, autocast, exact_attention=None):
    """Names of gradients whose error against float64 is above the model's; it is fused in a copy."""
    exact_model = copy.deepcopy(model).double()
    for block in exact_model.blocks:
        block.attention.attention = exact_attention or block.attention.attention
    exact = gradients_of(exact_model, batch)
    results = []
    for each in (model, twin(model)):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            results.append(relative_errors(gradients_of(each, batch), exact))
    plain, ours = results
    allowed = 3 if INTERPRETED else 1.5  # the interpreter truncates bf16
    return {name: (ours[name], plain[name]) for name in exact if not ours[name] <= allowed * plain[name]}


def test_names_and_parameters_stay(device):
    model = build(device)
    parameters, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    assert fuse(model) is model
    assert fuse(model) is model, "again"
    assert isinstance(model, TransformerLM)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert model.state_dict().keys() == state.keys()
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_gradients_of_one_matmul_are_rows_of_one_buffer(device):
    fused = twin(build(device))
    gradients_of(fused, make_batch(device))
    for block in fused.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        for layers in ((attention.query, attention.key, attention.value), (feed_forward.gate, feed_forward.up)):
            for tensors in ([layer.weight for layer in layers], [layer.weight.grad for layer in layers]):
                assert len({x.untyped_storage().data_ptr() for x in tensors}) == 1
                ends = [x.data_ptr() + x.nbytes for x in tensors]
                assert [x.data_ptr() for x in tensors[1:]] == ends[:-1]


@pytest.mark.numeric
def test_gradients_of_two_micro_batches_add_up(device):
    model = build(device)
    fused = twin(model)
    batches = [make_batch(device, seed=seed) for seed in (1, 2)]
    want = gradients_of(model, *batches)
    for _ in range(2):  # and once more after zero_grad(set_to_none=True)
        for name, gradient in gradients_of(fused, *batches).items():
            torch.testing.assert_close(gradient, want[name], rtol=1e-3, atol=1e-6)


def test_a_step_copies_and_adds_nothing_outside_of_its_kernels():
    if not INTERPRETED:
        pytest.skip("needs kernels, and a CPU, on which operators of the backward pass are seen")
    fused = fuse(build(dtype=torch.bfloat16, attention=lambda q, k, v, is_causal: AllOfThree.apply(q, k, v)))
    hidden = fused.hidden(make_batch()[0])
    gradient = torch.randn_like(hidden)
    hidden.backward(gradient)
    fused.zero_grad(set_to_none=True)
    with Operators() as operators:
        fused.hidden(make_batch()[0]).backward(gradient)
    passes = [x.name for x in operators.calls if x.name in PASSES and x.dtype == torch.bfloat16]
    assert passes == ["copy_"] * len(fused.blocks), "of the stand-in; bytes are what the interpreter copies"
    assert len(operators.named("mm")) == 2 * 4 * 3, "per block four matmuls, and twice as many in the backward pass"


PASSES = {"clone", "copy_", "contiguous", "cat", "stack", "add", "add_", "sum", "mul", "_to_copy", "zeros_like"}


class AllOfThree(torch.autograd.Function):
    """Stands in for attention, which in PyTorch would copy: q, and gradients in the layout of q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v):
        return empty_output(q).copy_(q)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient, gradient


def test_packed_weights_are_saved_once():
    fused, file = twin(build()), io.BytesIO()
    loss_of(fused, make_batch())
    torch.save(fused.state_dict(), file)
    assert file.tell() < 1.2 * sum(x.nbytes for x in fused.state_dict().values())


def test_tables_of_angles_stay_in_fp32():
    fused = fuse(build()).to(torch.bfloat16)
    assert {x.dtype for x in fused.parameters()} == {torch.bfloat16}
    assert {x.dtype for x in fused.buffers()} == {torch.float32}
    assert {x.device.type for x in fused.to("meta").buffers()} == {"meta"}


@pytest.mark.numeric
def test_frozen_tied_and_shared_weights(device):
    model = build(device)
    model.lm_head.weight = model.token_embedding.weight
    first, second = model.blocks
    second.attention_norm.weight = first.attention_norm.weight
    second.attention.key.weight = second.attention.query.weight
    first.feed_forward.up.weight.requires_grad_(False)
    for parameter in first.attention.parameters():
        parameter.requires_grad_(False)
    fused, batch = twin(model), make_batch(device)
    want, got = gradients_of(model, batch), gradients_of(fused, batch)
    for name, gradient in want.items():
        assert (got[name] is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize(("segment", "returns_sum"), [(1, False), (3, False), (0, True), (1, True)])
def test_checkpoint_segments_and_blocks_that_return_their_sum_change_nothing(segment, returns_sum, device):
    size = "deep:d_model=24,d_ff=40,num_layers=4,num_heads=2"
    model, batch = twin(build(device, size=size)), make_batch(device, sequence=3)
    want = {name: x.clone() for name, x in gradients_of(model, batch).items()}
    model.checkpoint_segment = segment
    first = model.blocks[0]
    first.returns_sum = returns_sum
    assert (first(model.token_embedding(batch[0]))[1] is None) == returns_sum
    for name, gradient in gradients_of(model, batch).items():
        torch.testing.assert_close(gradient, want[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("keep_hidden", [True, False])
def test_a_compiled_model_computes_the_same(keep_hidden, device):
    if INTERPRETED:
        pytest.skip("compiled models run the formulas")
    fused, batch = twin(build(device), keep_hidden=keep_hidden), make_batch(device)
    want = {name: x.clone() for name, x in gradients_of(fused, batch).items()}
    compiled = torch.compile(fused, backend="aot_eager")
    loss_of(compiled, batch)  # the first call compiles
    fused.zero_grad(set_to_none=True)
    loss_of(compiled, batch).backward()
    for name, parameter in fused.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name], rtol=1e-3, atol=1e-6)


def test_models_of_other_classes_are_refused_by_name():
    with pytest.raises(TypeError, match=r"fuse accepts .*TransformerLM, got torch.nn.modules.linear.Linear"):
        fuse(nn.Linear(2, 2))
    other = CheckpointedLM(VOCABULARY, CONTEXT, 8, 1, 1, 16, ROPE_THETA)
    with pytest.raises(TypeError, match=r"but the model is tests.support.models.CheckpointedLM"):
        fuse(other)
    model = build()
    model.blocks[1].feed_forward = nn.Identity()
    with pytest.raises(TypeError, match=r"blocks.1.feed_forward is torch.nn.modules.linear.Identity"):
        fuse(model)
    assert type(model) is TransformerLM, "nothing is replaced"
    model = build()
    model.blocks[0].attention.query = nn.Linear(64, 64)
    with pytest.raises(TypeError, match=r"without a bias, but blocks.0.attention.query has one"):
        fuse(model)


class Adapter(nn.Module):
    """A low-rank adapter that has the weight of what it wraps, as PEFT's."""

    def __init__(self, base):
        super().__init__()
        self.base, self.delta = base, nn.Parameter(torch.full_like(base.weight, 0.01))

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + nn.functional.linear(x, self.delta)


class Scaled(nn.Module):
    def forward(self, x):
        return 1.5 * x


class Offset(nn.Module):
    """A rotary embedding or a norm of another kind."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x) + 0.5


class Wrapped(nn.Module):
    """A wrapper that passes on what it gets."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *arguments):
        return self.block(*arguments)


def replaced(path, make):
    def change(model):
        owner, _, name = path.rpartition(".")
        owner = model.get_submodule(owner)
        setattr(owner, name, make(owner.get_submodule(name)))

    return change


def hooked(path):
    return lambda model: model.get_submodule(path).register_forward_hook(lambda module, args, output: 1.5 * output)


def parametrized(path):
    return lambda model: register_parametrization(model.get_submodule(path), "weight", Scaled())


def with_bias(layer):
    biased = nn.Linear(layer.in_features, layer.out_features)
    biased.weight = layer.weight
    return biased


def monkeypatched(model):
    gate = model.blocks[0].feed_forward.gate
    gate.forward = lambda x: 2 * nn.functional.linear(x, gate.weight)


def assigned(model):
    model.load_state_dict({name: 1.1 * weight for name, weight in model.state_dict().items()}, assign=True)


CHANGES = {
    "assigned weights": assigned,
    "adapted query": replaced("blocks.0.attention.query", Adapter),
    "adapted down": replaced("blocks.0.feed_forward.down", Adapter),
    "hook of a key": hooked("blocks.1.attention.key"),
    "hook of down": hooked("blocks.1.feed_forward.down"),
    "hook of a norm": hooked("blocks.1.feed_forward_norm"),
    "hook of the last norm": hooked("final_norm"),
    "parametrized value": parametrized("blocks.0.attention.value"),
    "parametrized norm": parametrized("blocks.0.attention_norm"),
    "gate with a bias": replaced("blocks.0.feed_forward.gate", with_bias),
    "gate with another forward method": monkeypatched,
    "another rotation": replaced("blocks.0.attention.rope", Offset),
    "another norm": replaced("final_norm", Offset),
    "another block": replaced("blocks.1", lambda block: nn.Sequential(build().blocks[1])),
    "a wrapped block": replaced("blocks.0", Wrapped),
}


@pytest.mark.numeric
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_layers_that_change_afterwards_are_called(change):
    model, batch = build(), make_batch(sequence=3)
    before, fused = loss_of(model, batch), twin(model, keep_hidden=False)  # which calls `down` only if it changed
    loss_of(fused, batch)  # which packs the weights
    results = []
    for each in (model, fused):
        torch.manual_seed(0)
        change(each)
        each.zero_grad()
        loss = loss_of(each, batch)
        loss.backward()
        results.append((loss, {name: parameter.grad for name, parameter in each.named_parameters()}))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-6)
    if change not in (CHANGES["another block"], CHANGES["a wrapped block"]):
        assert (results[0][0] - before).abs() > 1e-4 * before, "the change has an effect"


@pytest.mark.parametrize("change", [hooked("blocks.0.attention.query"), hooked("blocks.1"), monkeypatched])
def test_hooks_and_other_forward_methods_are_refused(change):
    model = build()
    change(model)
    with pytest.raises(TypeError, match=r"blocks\..* has a hook or its own forward method"):
        fuse(model)
    assert type(model) is TransformerLM, "nothing is replaced"


def test_weights_of_two_dtypes_run_as_pytorch_runs_them():
    model = build()
    fused, batch = twin(model), make_batch()
    for each in (model, fused):
        each.blocks[0].attention.key.bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(each, batch).backward()
    assert fused.blocks[0].attention.key.weight.dtype == torch.bfloat16
    for a, b in zip(model.parameters(), fused.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 0.05 * a.grad.norm()


@pytest.mark.gpu
def test_a_step_is_captured_in_a_graph():
    model = build("cuda", torch.bfloat16, attention=flash_attention)
    fused, batch = twin(model), make_batch("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        want = {name: x.clone() for name, x in gradients_of(fused, batch).items()}
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gradients_of(fused, batch)
    graph.replay()
    for name in want:
        assert_close(got[name], want[name].double(), 1e-2)


@pytest.mark.gpu
def test_weights_that_lie_apart_are_not_captured():
    fused = copy.deepcopy(fuse(build("cuda")))
    with pytest.raises(RuntimeError, match="Weights are not packed yet"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fused(torch.zeros(1, 1, dtype=torch.long, device="cuda"))
