"""Attention on a CPU: tiled PyTorch, and the function for users; some tests also on a GPU."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from cs336_systems.attention import TiledFlashAttention, flash_attention, plain_attention
from cs336_systems.attention.flash import IMPLEMENTATIONS
from cs336_systems.attention.options import Options
from tests.attention.cases import (
    INFINITE,
    Case,
    check,
    dense,
    differences_where_scores_are_infinite,
    excess,
    function_results,
    make_inputs,
    reference,
    results,
)
from tests.support.operators import Operators

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
NARROW = (torch.float32, torch.bfloat16)

# n_queries, n_keys: powers of two, odd, unequal both ways, one query, one key
LENGTHS = [(128, 128), (77, 77), (50, 130), (130, 50), (1, 65), (65, 1)]


def make_qkv(shape, n_keys, dtype=torch.float32, device="cpu", kv_heads=None) -> list[Tensor]:
    """Random q, [*shape], k and v, with other numbers of keys and of heads."""
    generator = torch.Generator().manual_seed(0)
    leading = shape[:-2] if kv_heads is None else (*shape[:-3], kv_heads)
    shapes = (shape, (*leading, n_keys, shape[-1]), (*leading, n_keys, shape[-1]))
    return [torch.randn(each, generator=generator).to(device, dtype) for each in shapes]


@pytest.mark.numeric
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("keys", INFINITE)
@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.float32), *(pytest.param("cuda", x, marks=pytest.mark.gpu) for x in NARROW)]
)
def test_infinite_scores(device, dtype, keys, is_causal):
    assert not differences_where_scores_are_infinite(results, keys, is_causal, dtype, device)


def test_a_score_that_is_no_number_spoils_its_row_only():
    q, k, v = make_qkv((1, 130, 16), 130)
    q[0, 3] = torch.nan
    o = flash_attention(q, k, v)
    assert o[0, 3].isnan().all()
    assert o.isnan().sum() == 16


@pytest.mark.numeric
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n_queries", "n_keys"), LENGTHS)
def test_tiled(n_queries, n_keys, dtype, is_causal):
    case = dense((2, 1, n_queries, 32), n_keys, is_causal)
    check(case, dtype, compute=partial(function_results, TiledFlashAttention))


@pytest.mark.parametrize("is_causal", [False, True])
def test_tiled_in_float64(is_causal):
    q, k, v = (x.requires_grad_() for x in make_qkv((2, 5, 4), 7, torch.float64))
    assert torch.autograd.gradcheck(lambda *x: TiledFlashAttention.apply(*x, is_causal), (q, k, v))


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8), (0, 5, 8), (2, 0, 8)])
def test_any_leading_axes(shape, device):
    q, k, v = make_qkv(shape, 7, device=device)
    q.requires_grad_()
    o = flash_attention(q, k, v, True)
    assert o.shape == q.shape
    torch.testing.assert_close(o, plain_attention(q, k, v, True))
    o.sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [flash_attention, TiledFlashAttention.apply])
def test_nothing_inside_is_cast_by_autocast(function, dtype):
    """Forward and backward under autocast give the bits that they give without, from inputs that autocast casts to."""
    q, k, v, grad_o = (3 * x for x in (*make_qkv((2, 90, 16), 90, dtype), torch.randn(2, 90, 16)))

    def compute(*leaves):
        leaves = [x.detach().requires_grad_() for x in leaves]
        o = function(*leaves, True)
        return o, *torch.autograd.grad(o, leaves, grad_o.to(o.dtype))

    with torch.autocast("cpu", torch.bfloat16):
        got = compute(q, k, v)
    casts = function is flash_attention
    want = compute(*(x.bfloat16() if casts else x for x in (q, k, v)))
    assert got[0].dtype == (torch.bfloat16 if casts else dtype)
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(got, want, strict=True))


def test_autocast_does_not_cast_fp64():
    q = torch.zeros(2, 4, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"q of torch\.float64"):
        flash_attention(q, q, q)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_bf16_gradients_are_as_close_as_those_of_sdpa(factor):
    """With scores of this size, rounding them to bf16 shows: sixfold."""
    case = dense((2, 4, 100, 64), 100, True, factor=factor)
    inputs = make_inputs(case, torch.bfloat16)
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    of_sdpa = torch.autograd.grad(o, leaves, inputs["do"])
    want, got = reference(case, inputs, torch.float64), results(case, inputs)
    for name, gradient in zip(("dq", "dk", "dv"), of_sdpa, strict=True):
        assert (got[name] - want[name]).norm() <= 1.2 * (gradient - want[name]).norm(), name


def test_memory_is_linear_in_the_sequence():
    """Of the operators of flash_attention on a CPU, and of the autograd function."""
    n, d = 600, 8
    qkv, grad_o, options = make_qkv((1, n, d), n), torch.randn(1, n, d), Options(True)
    leaves = [x.detach().requires_grad_() for x in qkv]
    forward, backward = IMPLEMENTATIONS["CompositeExplicitAutograd"]
    with Operators() as operators:
        o, lse = forward(*qkv, options)
        backward(grad_o, *qkv, o, lse, None, options)
        torch.autograd.grad(TiledFlashAttention.apply(*leaves, True), leaves, grad_o)
    sizes = [call.output.numel() for call in operators.calls if call.output is not None]
    assert max(sizes) == n * d  # of a tile there are 64 x 64


def test_compiled_once_for_all_lengths_in_a_small_graph():
    from torch._dynamo.testing import CompileCounterWithBackend  # importing it takes seconds

    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(flash_attention, fullgraph=True, dynamic=True, backend=counter)
    for n, m in ((40, 50), (200, 190), (64, 64), (129, 333)):
        leaves = [x.requires_grad_() for x in make_qkv((2, 3, n, 16), m)]
        got = torch.autograd.grad(compiled(*leaves, is_causal=True).sum(), leaves)
        want = torch.autograd.grad(plain_attention(*leaves, True).sum(), leaves)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
    (compilation,) = counter.graphs
    assert len(compilation.graph.nodes) < 50  # mostly symbolic sizes


def test_compiled_with_one_tensor_for_all_three():
    x = torch.randn(2, 70, 16, requires_grad=True)
    o = torch.compile(flash_attention, fullgraph=True, backend="aot_eager")(x, x, x, True)
    got, want = (torch.autograd.grad(y.sum(), x)[0] for y in (o, plain_attention(x, x, x, True)))
    torch.testing.assert_close(got, want)


def test_meta_tensors_have_shapes_only():
    q, k, v = (x.to("meta") for x in make_qkv((2, 4, 9, 8), 7, torch.bfloat16, kv_heads=2))
    k.requires_grad_()
    o, lse = flash_attention(q, k, v, enable_gqa=True, return_lse=True)
    assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (2, 4, 9), torch.float32)
    assert torch.autograd.grad(o.sum(), k)[0].shape == k.shape


# Shapes as users of SDPA and FlashAttention have them.
VARIANTS = {
    "scale": dense((2, 3, 70, 24), 90, False, scale=0.4),
    "large scale": dense((2, 1, 70, 16), 70, False, heads=None, kv_heads=None, scale=4),
    "two heads of q to one of k": dense((2, 4, 70, 24), 90, False, kv_heads=2),
    "all heads of q to one of k": dense((3, 130, 16), 70, False, kv_heads=1, scale=0.3),
    "groups, two batch axes": dense((2, 3, 6, 33, 16), 40, False, kv_heads=2),
    "narrow values": dense((2, 3, 70, 24), 50, False, d_v=9),
    "wide values, groups": dense((2, 4, 33, 16), 70, False, kv_heads=1, d_v=40, scale=0.2),
    "no batch axis": dense((1, 70, 24), 50, False, heads=None, kv_heads=None),
}


def make_variant(name: str, dtype, device="cpu", **options) -> tuple[Case, dict[str, Tensor]]:
    """A case, and inputs that are not contiguous."""
    case = replace(VARIANTS[name], uses_lse=True, **options)
    inputs = make_inputs(case, dtype, device)
    large = {name: inputs[name].transpose(0, -2).contiguous().transpose(0, -2) for name in ("q", "k", "v", "do")}
    return case, inputs | large


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_and_the_gradient_of_the_log_sum_exp(device, name, dtype, is_causal):
    case, inputs = make_variant(name, dtype, device, is_causal=is_causal)
    assert not excess(case, inputs, results(case, inputs))


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].scale is None])
def test_variants_mean_what_they_mean_to_sdpa(name):
    q, k, v, *_ = make_variant(name, torch.float32)[1].values()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    options = {"scale": 0.3, "enable_gqa": q.dim() > 2, "dropout_p": 0.0, "attn_mask": None}
    torch.testing.assert_close(
        flash_attention(q, k, v, is_causal=True, **options), sdpa(q, k, v, is_causal=True, **options)
    )


def test_a_loss_of_the_log_sum_exp_alone():
    q, k, v = make_qkv((2, 3, 70, 24), 90)
    q.requires_grad_()
    lse = flash_attention(q, k, v, scale=0.4, return_lse=True)[1]
    (grad,) = torch.autograd.grad(lse.sum(), q)
    (want,) = torch.autograd.grad((q @ k.transpose(-2, -1) * 0.4).logsumexp(-1).sum(), q)
    torch.testing.assert_close(grad, want)


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
    leaves = [x.requires_grad_() for x in make_qkv((2, 3, 9, 8), 9, device=device)]
    o = function(*leaves, True)
    grad_o = torch.randn_like(o)
    gradients = torch.autograd.grad(o, leaves, grad_o, create_graph=True)
    want = torch.autograd.grad(function(*leaves, True), leaves, grad_o)
    assert all(torch.equal(a, b) for a, b in zip(gradients, want, strict=True))  # the first derivative is as always
    with pytest.raises(NotImplementedError, match=r"flash_attention cannot be differentiated twice"):
        (o.sum() + gradients[0].square().sum()).backward()


def loss(q, k, v):
    o, lse = flash_attention(q, k, v, True, enable_gqa=True, return_lse=True)
    return o.square().sum() + lse.sin().sum()


def plain_loss(q, k, v):
    results = [x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v)]
    scores = q @ results[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    return (scores.softmax(-1) @ results[1]).square().sum() + scores.logsumexp(-1).sin().sum()


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_torch_func(kv_heads, device):
    """Gradients, for each sample alone and of all, with what the samples share on any axis or on none."""
    func = torch.func
    q, k, v = make_qkv((3, 4, 40, 8), 40, device=device, kv_heads=kv_heads)
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


@pytest.mark.parametrize("transform", ["jvp", "hessian", "dual", "compiled jvp", "grad of grad"])
def test_other_derivatives_are_refused(transform, device):
    q, k, v = make_qkv((2, 9, 8), 9, device=device)

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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[2, 4, 8]" in done.stdout


def test_the_cases_on_a_gpu_reach_every_row_of_the_tile_tables():
    from cs336_systems.attention.chip import H200
    from cs336_systems.attention.tile_config import backward_tiles, forward_tiles
    from tests.attention.test_attention_gpu import CASES

    widths, lengths = (16, 32, 64, 128, 256), [2**n + 1 for n in range(18)]
    for table in (partial(forward_tiles, H200), partial(backward_tiles, H200)):
        problems = itertools.product((False, True), widths, lengths, lengths, (False, True))
        rows = {table(*problem) for problem in problems if problem[2] >= problem[3]}
        reached = set()
        for case, dtype in (case.values for case in CASES):
            width = max(32 if dtype == torch.float32 else 16, 1 << (case.d - 1).bit_length())
            ((n_queries, _),), aligned = case.lengths, case.d * dtype.itemsize % 16 == 0
            queries = math.prod(case.batch) * case.heads * n_queries
            reached.add(table(dtype == torch.float32, width, queries, n_queries, aligned))
        assert rows <= reached
