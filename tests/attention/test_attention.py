"""Attention on a CPU: tiled PyTorch, the function for users, and the Triton kernels through Triton's interpreter.

An implementation passes where its error against float64 is at most twice that of plain PyTorch in the same precision:
it may round where PyTorch rounds, in another order, and no more.
"""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_systems.attention import TiledFlashAttention, flash_attention, plain_attention
from cs336_systems.attention.flash import IMPLEMENTATIONS
from cs336_systems.attention.operators import with_options
from cs336_systems.attention.options import Options
from tests.support.interpreter import interpreter_environment

NAMES = ("o", "lse", "dq", "dk", "dv")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
NARROW = (torch.float32, torch.bfloat16)
on_each_device = pytest.mark.parametrize("device", ["cpu", GPU])

# n_queries, n_keys: powers of two, odd, unequal both ways, one query, one key
LENGTHS = [(128, 128), (77, 77), (50, 130), (130, 50), (1, 65), (65, 1)]


def make_inputs(shape, n_keys, dtype, device="cpu", scale=1.0, kv_heads=None, d_v=None) -> list[Tensor]:
    """Random q, k, v and gradient of the output; q is [*shape], the last two axes being n_queries and d."""
    generator = torch.Generator().manual_seed(0)
    leading = shape[:-2] if kv_heads is None else (*shape[:-3], kv_heads)
    d_v = d_v or shape[-1]
    shapes = (shape, (*leading, n_keys, shape[-1]), (*leading, n_keys, d_v), (*shape[:-1], d_v))
    q, k, v, grad_o = (torch.randn(s, generator=generator).to(device, dtype) for s in shapes)
    return [q * scale, k * scale, v, grad_o]


def plain_results(inputs: list[Tensor], is_causal: bool, dtype=None, scale=None, grad_lse=None) -> dict[str, Tensor]:
    """Output, L and gradients by autograd through the textbook formula, in the inputs' dtype or another."""
    q, k, v, grad_o = (x.detach().to(dtype or x.dtype) for x in inputs)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if k.shape[:-2] != q.shape[:-2]:
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    if scale is not None:
        q = q * (scale * math.sqrt(q.shape[-1]))
    o = plain_attention(q, k, v, is_causal)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        hidden = torch.arange(k.shape[-2], device=q.device) > torch.arange(q.shape[-2], device=q.device)[:, None]
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    if grad_lse is None:
        gradients = torch.autograd.grad(o, leaves, grad_o)
    else:
        gradients = torch.autograd.grad((o, lse), leaves, (grad_o, grad_lse.to(lse.dtype)))
    return dict(zip(NAMES, (o.detach(), lse.detach(), *gradients), strict=True))


def function_results(function, inputs: list[Tensor], is_causal: bool) -> dict[str, Tensor]:
    """The same from an autograd.Function, with L as it was saved for backward."""
    q, k, v, grad_o = inputs
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = function.apply(*leaves, is_causal)
    saved = [x for x in o.grad_fn.saved_tensors if x.shape == q.shape[:-1]]
    assert len(saved) == 1, "exactly one saved tensor has the shape of L"
    return dict(zip(NAMES, (o.detach(), saved[0], *torch.autograd.grad(o, leaves, grad_o)), strict=True))


def flash_results(inputs: list[Tensor], is_causal: bool, scale=None, grad_lse=None) -> dict[str, Tensor]:
    """The same from flash_attention."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    o, lse = flash_attention(*leaves, is_causal, scale=scale, enable_gqa=True, return_lse=True)
    gradients = torch.autograd.grad(
        (o, lse), leaves, (inputs[3], torch.zeros_like(lse) if grad_lse is None else grad_lse)
    )
    return dict(zip(NAMES, (o.detach(), lse.detach(), *gradients), strict=True))


def error(got: Tensor, want: Tensor) -> float:
    """Absolute error, ‖got - want‖."""
    return (got.double() - want.double()).norm().item()


def excess(
    got: dict[str, Tensor], inputs: list[Tensor], is_causal: bool, large_scores: bool = False, **options
) -> dict[str, str]:
    """The results whose error is more than twice PyTorch's; empty if all is well.

    A floor of two roundings of the result allows for PyTorch being exact by luck. With one query or one key it is four
    roundings of a number of order one, an element and a term: there dQ and dK are zero, or nearly, as sums of
    differences of such numbers, and what is left is their rounding. With large scores the gradients may also be off by
    the rounding of L, which any backward pass inherits that starts from L: PyTorch's starts from the saved softmax.
    """
    want = plain_results(inputs, is_causal, torch.float64, **options)
    plain = plain_results(inputs, is_causal, **options)
    lengths = inputs[0].shape[-2], inputs[1].shape[-2]
    cancels = max(lengths) ** 0.5 if min(lengths) == 1 else 0.0
    return beyond_twice(got, plain, want, cancels, want["lse"].abs().max().item() if large_scores else 0.0)


def beyond_twice(
    got: dict[str, Tensor], plain: dict[str, Tensor], want: dict[str, Tensor], cancels: float = 0.0, lse: float = 0.0
) -> dict[str, str]:
    """The results whose error against want is more than twice plain's, and than what excess allows besides."""
    bad = {}
    for name, value in got.items():
        eps = torch.finfo(value.dtype).eps
        floor = max(2 * eps * want[name].norm().item(), 4 * eps * value.numel() ** 0.5 * cancels)
        if name.startswith("d"):
            floor += lse * torch.finfo(torch.float32).eps * want[name].norm().item()
        allowed = 2 * error(plain[name], want[name]) + floor
        actual = error(value, want[name])
        if not actual <= allowed:  # also catches NaN
            bad[name] = f"{actual:.2e} > {allowed:.2e}"
    return bad


INFINITE = {"first keys": slice(0, 70), "middle keys": slice(5, 100), "every key": slice(None)}
"""Keys whose scores are -inf: more than a tile of them, and with a causal mask whole rows."""


def differences_where_scores_are_infinite(results, keys, is_causal, dtype, device="cpu", d=16) -> list[str]:
    """The results that differ from SDPA's in float64 by more than roundings, with NaN in the same places."""
    q, k, v, grad_o = make_inputs((1, 2, 130, d), 130, dtype, device)
    q, k = q.abs(), k.clone()
    k[:, :, INFINITE[keys]] = -torch.inf
    got = results([q, k, v, grad_o], is_causal)
    leaves = [x.double().cpu().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
    scores = leaves[0] @ leaves[1].transpose(-2, -1) / math.sqrt(d)
    hidden = torch.ones_like(scores).triu(1) > 0
    lse = (scores.masked_fill(hidden, -torch.inf) if is_causal else scores).logsumexp(-1)
    gradients = torch.autograd.grad(o, leaves, grad_o.double().cpu())
    want = dict(zip(NAMES, (o.detach(), lse.detach(), *gradients), strict=True))
    for name in ("dk", "dv"):  # of the infinite keys themselves they are 0 or NaN: kernels multiply them by padding
        got[name][:, :, INFINITE[keys]] = want[name][:, :, INFINITE[keys]] = 0
    tolerance = 64 * torch.finfo(dtype).eps
    return [
        name
        for name, x in got.items()
        if not torch.allclose(x.double().cpu(), want[name], rtol=tolerance, atol=tolerance, equal_nan=True)
    ]


@pytest.mark.numeric
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("keys", INFINITE)
@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.float32), *(pytest.param("cuda", x, marks=pytest.mark.gpu) for x in NARROW)]
)
def test_infinite_scores(device, dtype, keys, is_causal):
    assert not differences_where_scores_are_infinite(flash_results, keys, is_causal, dtype, device)


def test_a_score_that_is_no_number_spoils_its_row_only():
    q, k, v, _ = make_inputs((1, 130, 16), 130, torch.float32)
    q[0, 3] = torch.nan
    o = flash_attention(q, k, v)
    assert o[0, 3].isnan().all()
    assert o.isnan().sum() == 16


@pytest.mark.numeric
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n_queries", "n_keys"), LENGTHS)
def test_tiled(n_queries, n_keys, dtype, is_causal):
    inputs = make_inputs((2, n_queries, 32), n_keys, dtype)
    assert not excess(function_results(TiledFlashAttention, inputs, is_causal), inputs, is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_tiled_in_float64(is_causal):
    q, k, v, _ = (x.requires_grad_() for x in make_inputs((2, 5, 4), 7, torch.float64))
    assert torch.autograd.gradcheck(lambda *x: TiledFlashAttention.apply(*x, is_causal), (q, k, v))


@pytest.mark.numeric
def test_tiled_with_large_scores():
    inputs = make_inputs((2, 100, 64), 100, torch.float32, scale=10.0)  # scores of some hundreds: exp alone overflows
    assert not excess(function_results(TiledFlashAttention, inputs, True), inputs, True, large_scores=True)


@on_each_device
@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8), (0, 5, 8), (2, 0, 8)])
def test_any_leading_axes(shape, device):
    q, k, v, _ = make_inputs(shape, 7, torch.float32, device)
    q.requires_grad_()
    o = flash_attention(q, k, v, True)
    assert o.shape == q.shape
    torch.testing.assert_close(o, plain_attention(q, k, v, True))
    o.sum().backward()
    assert q.grad.shape == q.shape


def test_strided_inputs_and_a_gradient_of_stride_zero():
    x = torch.randn(2, 9, 3, 4, 16, requires_grad=True)  # batch, sequence, (q, k, v), heads, d
    q, k, v = (t.transpose(1, 2) for t in x.unbind(2))
    (grad,) = torch.autograd.grad(flash_attention(q, k, v, True).sum(), x)
    (want,) = torch.autograd.grad(plain_attention(q, k, v, True).sum(), x)
    torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [flash_attention, TiledFlashAttention.apply])
def test_nothing_inside_is_cast_by_autocast(function, dtype):
    """Forward and backward under autocast give the bits that they give without, from inputs that autocast casts to."""
    inputs = make_inputs((2, 90, 16), 90, dtype, scale=3.0)

    def results(*leaves):
        leaves = [x.detach().requires_grad_() for x in leaves]
        o = function(*leaves, True)
        return o, *torch.autograd.grad(o, leaves, inputs[3].to(o.dtype))

    with torch.autocast("cpu", torch.bfloat16):
        got = results(*inputs[:3])
    casts = function is flash_attention
    want = results(*(x.bfloat16() if casts else x for x in inputs[:3]))
    assert got[0].dtype == (torch.bfloat16 if casts else dtype)
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(got, want, strict=True))


def test_autocast_does_not_cast_fp64():
    q = torch.zeros(2, 4, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"q of torch\.float64"):
        flash_attention(q, q, q)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_bf16_gradients_are_as_close_as_those_of_sdpa(scale):
    """With scores of this size, rounding them to bf16 shows: sixfold."""
    inputs = make_inputs((2, 4, 100, 64), 100, torch.bfloat16, scale=scale)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    of_sdpa = torch.autograd.grad(o, leaves, inputs[3])
    want, got = plain_results(inputs, True, torch.float64), flash_results(inputs, True)
    for name, gradient in zip(("dq", "dk", "dv"), of_sdpa, strict=True):
        assert error(got[name], want[name]) <= 1.2 * error(gradient, want[name]), name


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operator of PyTorch makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        forward, backward = IMPLEMENTATIONS["CompositeExplicitAutograd"]
        ours = {"attention_forward": with_options(forward, 3), "attention_backward": with_options(backward, 7)}
        if function._opname in ours:
            with self:
                return ours[function._opname](*args)
        result = function(*args, **kwargs or {})
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return result


@pytest.mark.parametrize("function", [flash_attention, TiledFlashAttention.apply])
def test_memory_is_linear_in_the_sequence(function):
    n, d = 600, 8
    q, k, v, grad_o = make_inputs((1, n, d), n, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with Largest() as largest:
        torch.autograd.grad(function(*leaves, True), leaves, grad_o)
    assert largest.elements == n * d  # of a tile there are 64 x 64


def graphs_of(function, calls) -> list[torch.fx.Graph]:
    """The graphs that torch.compile makes of a function that must not break, for calls of other lengths."""
    from torch._dynamo.testing import CompileCounterWithBackend  # importing it takes seconds

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for arguments in calls:
        leaves = [x.detach().requires_grad_() for x in arguments]
        o = compiled(*leaves)
        got = torch.autograd.grad(o.sum(), leaves)
        want = torch.autograd.grad(plain_attention(*leaves, True).sum(), leaves)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
    return [each.graph for each in counter.graphs]


def test_compiled_once_for_all_lengths_in_a_small_graph():
    lengths = ((40, 50), (200, 190), (64, 64), (129, 333))
    calls = [make_inputs((2, 3, n, 16), m, torch.float32)[:3] for n, m in lengths]
    (graph,) = graphs_of(lambda q, k, v: flash_attention(q, k, v, is_causal=True), calls)
    assert len(graph.nodes) < 50  # of which most are symbolic sizes


def test_compiled_with_one_tensor_for_all_three():
    x = torch.randn(2, 70, 16, requires_grad=True)
    o = torch.compile(flash_attention, fullgraph=True, backend="aot_eager")(x, x, x, True)
    got, want = (torch.autograd.grad(y.sum(), x)[0] for y in (o, plain_attention(x, x, x, True)))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["scale", "two heads of q to one of k", "large scale"])
def test_operators_keep_their_contract(name):
    (q, k, v, grad_o), options = make_variant(name, torch.float32)
    operators = torch.ops.cs336_systems
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(operators.attention_forward, (*leaves, True, options["scale"]))
    o, lse = operators.attention_forward(q, k, v, True, options["scale"])
    arguments = (grad_o, q, k, v, o, lse, options["grad_lse"], True, options["scale"])
    torch.library.opcheck(operators.attention_backward, arguments)


def test_meta_tensors_have_shapes_only():
    q, k, v, grad_o = (x.to("meta") for x in make_inputs((2, 4, 9, 8), 7, torch.bfloat16, kv_heads=2))
    k.requires_grad_()
    o, lse = flash_attention(q, k, v, enable_gqa=True, return_lse=True)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (2, 4, 9), torch.float32)
    assert torch.autograd.grad(o, k, grad_o)[0].shape == k.shape


# Shapes as users of SDPA and FlashAttention have them: q's shape, n_keys, heads of k and v, width of v, scale.
VARIANTS = {
    "scale": ((2, 3, 70, 24), 90, 3, 24, 0.4),
    "large scale": ((2, 70, 16), 70, None, 16, 4),
    "two heads of q to one of k": ((2, 4, 70, 24), 90, 2, 24, None),
    "all heads of q to one of k": ((3, 130, 16), 70, 1, 16, 0.3),
    "groups, two batch axes": ((2, 3, 6, 33, 16), 40, 2, 16, None),
    "narrow values": ((2, 3, 70, 24), 50, 3, 9, None),
    "wide values, groups": ((2, 4, 33, 16), 70, 1, 40, 0.2),
    "no batch axis": ((70, 16), 50, None, 24, None),
}


def make_variant(name: str, dtype, device="cpu") -> tuple[list[Tensor], dict]:
    """Inputs, not contiguous, and the options of flash_results and excess."""
    shape, n_keys, kv_heads, d_v, scale = VARIANTS[name]
    inputs = make_inputs(shape, n_keys, dtype, device, kv_heads=kv_heads, d_v=d_v)
    inputs = [x.transpose(0, -2).contiguous().transpose(0, -2) for x in inputs]
    grad_lse = torch.randn(shape[:-1], generator=torch.Generator().manual_seed(1)).to(device)
    return inputs, {"scale": scale, "grad_lse": grad_lse}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
@on_each_device
def test_variants_and_the_gradient_of_the_log_sum_exp(device, name, dtype, is_causal):
    inputs, options = make_variant(name, dtype, device)
    large_scores = name == "large scale"
    got = flash_results(inputs, is_causal, **options)
    assert not excess(got, inputs, is_causal, large_scores, **options)


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name][4] is None])
def test_variants_mean_what_they_mean_to_sdpa(name):
    q, k, v, _ = make_variant(name, torch.float32)[0]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    options = {"scale": 0.3, "enable_gqa": q.dim() > 2, "dropout_p": 0.0, "attn_mask": None}
    torch.testing.assert_close(
        flash_attention(q, k, v, is_causal=True, **options), sdpa(q, k, v, is_causal=True, **options)
    )


def test_a_loss_of_the_log_sum_exp_alone():
    (q, k, v, _), options = make_variant("scale", torch.float32)
    q.requires_grad_()
    lse = flash_attention(q, k, v, scale=options["scale"], return_lse=True)[1]
    (grad,) = torch.autograd.grad(lse.sum(), q)
    (want,) = torch.autograd.grad((q @ k.transpose(-2, -1) * options["scale"]).logsumexp(-1).sum(), q)
    torch.testing.assert_close(grad, want)


SECOND_DERIVATIVE = pytest.raises(NotImplementedError, match=r"flash_attention cannot be differentiated twice")


@pytest.mark.parametrize(
    ("function", "device"),
    [
        (flash_attention, "cpu"),
        (TiledFlashAttention.apply, "cpu"),
        pytest.param(flash_attention, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_second_derivative_is_refused(function, device):
    """A penalty on a gradient next to another loss: it must not count as zero, or as something else."""
    q, k, v, grad_o = make_inputs((2, 3, 9, 8), 9, torch.float32, device)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = function(*leaves, True)
    gradients = torch.autograd.grad(o, leaves, grad_o, create_graph=True)
    want = torch.autograd.grad(function(*leaves, True), leaves, grad_o)
    assert all(torch.equal(a, b) for a, b in zip(gradients, want, strict=True))  # the first derivative is as always
    with SECOND_DERIVATIVE:
        (o.sum() + gradients[0].square().sum()).backward()


def loss(q, k, v):
    o, lse = flash_attention(q, k, v, True, enable_gqa=True, return_lse=True)
    return o.square().sum() + lse.sin().sum()


def plain_loss(q, k, v):
    results = [x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v)]
    scores = q @ results[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    return (scores.softmax(-1) @ results[1]).square().sum() + scores.logsumexp(-1).sin().sum()


@on_each_device
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_torch_func(kv_heads, device):
    """Gradients, for each sample alone and of all, with what the samples share on any axis or on none."""
    func = torch.func
    q, k, v, _ = make_inputs((3, 4, 40, 8), 40, torch.float32, device, kv_heads=kv_heads)
    want = func.grad(plain_loss, (0, 1, 2))(q.double(), k.double(), v.double())
    for transformed in (
        func.grad(loss, (0, 1, 2)),
        func.vmap(func.grad(loss, (0, 1, 2))),
        func.grad(lambda *x: func.vmap(loss)(*x).sum(), (0, 1, 2)),
    ):
        got = transformed(q, k, v)
        assert all(
            torch.allclose(a.double(), b, atol={"cpu": 1e-5, "cuda": 1e-4}[device])
            for a, b in zip(got, want, strict=True)
        )
    shared = func.vmap(lambda *x: flash_attention(*x, enable_gqa=True), in_dims=(0, None, None), out_dims=2)
    want = flash_attention(q, *(x[:1].expand(3, -1, -1, -1) for x in (k, v)), enable_gqa=True)
    torch.testing.assert_close(shared(q, k[0], v[0]).movedim(2, 0), want)


@on_each_device
@pytest.mark.parametrize("transform", ["jvp", "hessian", "dual", "compiled jvp", "grad of grad"])
def test_other_derivatives_are_refused(transform, device):
    q, k, v, _ = make_inputs((2, 9, 8), 9, torch.float32, device)

    def call(x):
        return flash_attention(x, k, v)

    def summed(x):
        return call(x).square().sum()

    def tangent(x):
        return torch.func.jvp(call, (x,), (x,))[1]

    def dual(x):
        with torch.autograd.forward_ad.dual_level():
            return call(torch.autograd.forward_ad.make_dual(x, x))

    derivatives = {
        "jvp": tangent,
        "dual": dual,
        "compiled jvp": torch.compile(tangent, backend="eager"),
        "hessian": torch.func.hessian(summed),
        "grad of grad": torch.func.grad(lambda x: torch.func.grad(summed)(x).sum()),
    }
    with pytest.raises(
        NotImplementedError, match=r"flash_attention (has no forward-mode|cannot be differentiated twice)"
    ):
        derivatives[transform](q)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 8, dtype=torch.float64)}, "float64"),
        ({"q": torch.zeros(2, 4, 8, dtype=torch.int64)}, "int64"),
        ({"k": torch.zeros(2, 4, 8, dtype=torch.bfloat16)}, "bfloat16"),
        ({"v": torch.zeros(2, 4, 8, device="meta")}, "v on meta"),
        ({"v": torch.zeros(2, 5, 8)}, r"\[2, 5, 8\]"),
        ({"q": torch.zeros(3, 4, 8)}, r"\[3, 4, 8\]"),
        ({"q": torch.zeros(2, 4, 9)}, r"\[2, 4, 9\]"),
        ({"q": torch.zeros(8)}, r"\[8\]"),
        ({"k": torch.zeros(2, 0, 8), "v": torch.zeros(2, 0, 8)}, r"\[2, 0, 8\]"),
        ({name: torch.zeros(2, 4, 257) for name in "qkv"}, "257"),
        ({"v": torch.zeros(2, 4, 257)}, "257"),
        ({"v": torch.zeros(2, 4, 0)}, "got 0"),
        (
            {"k": torch.zeros(1, 4, 8), "v": torch.zeros(1, 4, 8)},
            r"enable_gqa=True, got q \[2, 4, 8\] and k \[1, 4, 8\]",
        ),
        ({"k": torch.zeros(3, 4, 8), "v": torch.zeros(3, 4, 8), "enable_gqa": True}, r"multiple .* k \[3, 4, 8\]"),
        ({"k": torch.zeros(0, 4, 8), "v": torch.zeros(0, 4, 8), "enable_gqa": True}, r"multiple .* k \[0, 4, 8\]"),
        ({"k": torch.zeros(1, 2, 4, 8), "v": torch.zeros(1, 2, 4, 8), "enable_gqa": True}, r"k \[1, 2, 4, 8\]"),
        ({"is_causal": 0.5}, r"is_causal must be True or False, got 0\.5"),
        ({"is_causal": torch.ones(4, 4)}, r"is_causal .* a tensor of shape \[4, 4\]"),
        ({"scale": -0.5}, r"scale must be a positive number or None, got -0\.5"),
        ({"scale": math.nan}, "scale .* nan"),
        ({"scale": "half"}, "scale .* 'half'"),
        ({"dropout_p": 0.1}, r"does not support dropout_p, got 0\.1"),
        ({"attn_mask": torch.ones(4, 4)}, r"does not support attn_mask, got a tensor of shape \[4, 4\]"),
        ({"window_size": (-2, 0)}, r"window_size must be \(left, right\), .* got \(-2, 0\)"),
        ({"window_size": (3, 0.5)}, r"window_size .* got \(3, 0\.5\)"),
        ({"window_size": 128}, "window_size .* got 128"),
        ({"softcap": -30.0}, r"softcap must be a positive number, .* got -30\.0"),
        ({"softcap": math.nan}, "softcap .* nan"),
        ({"sinks": 0.5}, r"sinks must be a tensor or None, got 0\.5"),
        ({"sinks": torch.zeros(3)}, r"sinks must be \[2\], .* got sinks \[3\] and q \[2, 4, 8\]"),
        ({"sinks": torch.zeros(2, dtype=torch.float64)}, r"sinks .* got torch\.float64"),
        ({"sinks": torch.zeros(2, device="meta")}, "sinks must be on the device of q, got meta"),
        ({name: torch.zeros(4, 8) for name in "qkv"} | {"sinks": torch.zeros(1)}, r"q \[\.\.\., heads, n_queries, d\]"),
        ({"deterministic": "yes"}, "deterministic must be True or False, got 'yes'"),
        ({"cu_seqlens_q": torch.zeros(3)}, "no argument cu_seqlens_q: call flash_attention_varlen"),
        ({"causal": True}, "no argument causal: it is called is_causal"),
        ({"mask": None}, "no argument mask"),
    ],
)
def test_a_mistake_gets_one_sentence_with_the_value(change, message):
    arguments = {name: torch.zeros(2, 4, 8) for name in "qkv"} | change
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        flash_attention(**arguments)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


def test_the_package_imports_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "import torch; from cs336_systems.attention import flash_attention, flash\n"
        "assert flash.GpuFlashAttention is None\n"
        "x = torch.randn(2, 4, 8); print(flash_attention(x, x, x).shape)"
    )
    assert (
        "[2, 4, 8]" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


# The kernels, interpreted. The interpreter must be chosen before the kernels are defined, hence one process of their
# own for all cases, which is this file run as a script. Tiles come from the tables, or are what the tables give larger
# problems.


def test_the_cases_on_a_gpu_reach_every_row_of_the_tile_tables():
    from cs336_systems.attention.chip import H200
    from cs336_systems.attention.tile_config import backward_tiles, forward_tiles
    from tests.attention.test_attention_gpu import CASES

    widths, lengths = (16, 32, 64, 128, 256), [2**n + 1 for n in range(18)]
    for table in (partial(forward_tiles, H200), partial(backward_tiles, H200)):
        problems = itertools.product((False, True), widths, lengths, lengths, (False, True))
        rows = {table(*problem) for problem in problems if problem[2] >= problem[3]}
        reached = set()
        for (batch, heads, n_queries, _, d), dtype, _ in (case.values for case in CASES):
            width = max(32 if dtype == torch.float32 else 16, 1 << (d - 1).bit_length())
            aligned = d * dtype.itemsize % 16 == 0
            reached.add(table(dtype == torch.float32, width, batch * heads * n_queries, n_queries, aligned))
        assert rows <= reached


INTERPRETED = {
    "default": ((2, 70, 24), 45, torch.float32, True),
    "all keys": ((1, 33, 16), 80, torch.float16, False),
    "one query": ((1, 1, 16), 40, torch.float32, True),
    "one key": ((1, 40, 16), 1, torch.float32, False),
    "preprocess": ((1, 2, 150, 16), 70, torch.float16, True),
    "descriptors": ((2, 130, 16), 150, torch.float16, True),
    "descriptors, all keys": ((2, 70, 32), 130, torch.float32, False),
    "large scores": ((2, 100, 32), 70, torch.float32, True),
    "strided, heads in groups": ((2, 3, 40, 16), 40, torch.float32, True),
}

INTERPRETED_VARIANTS = {
    "scale": ("scale", True),
    "groups": ("two heads of q to one of k", True),
    "descriptors, groups": ("two heads of q to one of k", False),
}


FEW = {"default", "preprocess", "first keys", "descriptors, all keys", "groups", "second derivative"}
"""With a mask and without, with pointers and descriptors, with and without preprocessing, with heads in groups."""


def run_interpreted(cases: list[str]) -> None:
    """Print one JSON object: for each of these cases the results in excess of PyTorch's error."""
    from cs336_systems.attention import tile_config, triton_launch
    from cs336_systems.attention.triton_attention import TritonFlashAttention

    torch.set_num_threads(1)
    default = triton_launch.default_tiles
    forward = tile_config.ForwardTiles(block_m=64, block_n=64, num_warps=4, num_stages=2, descriptors=True)
    backward = tile_config.BackwardTiles(
        block_outer=64, block_inner=64, num_warps=4, num_stages=2, preprocess=True, descriptors=True
    )
    pointers = dataclasses.replace(backward, block_inner=32, descriptors=False)
    # What the tables choose for more queries than an interpreter can compute.
    many_queries = {
        "descriptors": lambda *_: (forward, backward),
        "preprocess": lambda *problem: (default(*problem)[0], pointers),
        "strided": lambda *problem: [dataclasses.replace(tiles, group=4) for tiles in default(*problem)],
    }
    report = {}
    for case in (case for case in INTERPRETED if case in cases):
        shape, n_keys, dtype, is_causal = INTERPRETED[case]
        inputs = make_inputs(shape, n_keys, dtype, scale=8.0 if case == "large scores" else 1.0)
        if case.startswith("strided"):
            inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]]
            inputs.append(torch.ones(()).expand(shape))  # the gradient of a sum
        triton_launch.default_tiles = many_queries.get(case.partition(",")[0], default)
        got = function_results(TritonFlashAttention, inputs, is_causal)
        report[case] = excess(got, inputs, is_causal, large_scores=case == "large scores")
    for case in (case for case in INTERPRETED_VARIANTS if case in cases):
        name, is_causal = INTERPRETED_VARIANTS[case]
        inputs, options = make_variant(name, torch.float32)
        triton_launch.default_tiles = many_queries.get(case.partition(",")[0], default)
        report[case] = excess(launch_results(inputs, is_causal, **options), inputs, is_causal, **options)
    triton_launch.default_tiles = default
    for case in (case for case in INFINITE if case in cases):
        report[case] = differences_where_scores_are_infinite(launch_results, case, True, torch.float32)
    q, k, v, _ = make_inputs((2, 9, 16), 9, torch.float32)
    o = TritonFlashAttention.apply(q.requires_grad_(), k, v, True)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    try:
        (o.sum() + dq.square().sum()).backward()
        report["second derivative"] = {"refused": "not at all"}
    except NotImplementedError as refused:
        report["second derivative"] = {} if "flash_attention cannot" in str(refused) else {"refused": str(refused)}
    print(json.dumps(report))


def launch_results(inputs, is_causal, scale=None, grad_lse=None) -> dict[str, Tensor]:
    """Results of the Triton kernels for inputs that they take as they are."""
    from cs336_systems.attention.triton_launch import attention_backward, attention_forward

    q, k, v, grad_o = inputs
    o, lse = attention_forward(q, k, v, Options(is_causal, scale))
    gradients = attention_backward(grad_o, q, k, v, o, lse, grad_lse, Options(is_causal, scale))
    return dict(zip(NAMES, (o, lse, *gradients), strict=True))


@pytest.fixture(scope="module")
def interpreted(request) -> dict[str, dict[str, str]]:
    environment = interpreter_environment()
    cases = [test.callspec.params["case"] for test in request.session.items if "interpreted" in test.fixturenames]
    run = subprocess.run([sys.executable, __file__, *cases], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in FEW else pytest.mark.slow)
        for case in (*INTERPRETED, *INTERPRETED_VARIANTS, *INFINITE, "second derivative")
    ],
)
def test_kernels_interpreted(interpreted, case):
    assert not interpreted[case]


if __name__ == "__main__":
    run_interpreted(sys.argv[1:])
