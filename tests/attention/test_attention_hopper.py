"""The Hopper kernels: against float64 by the rule of test_attention.py, as PyTorch sees them, and as they compile.

Kernels that wait for each other can hang where those of test_attention_gpu.py cannot, so each test has a time limit.
"""

import itertools
import re
import subprocess
from dataclasses import replace

import pytest
import torch

from tests.attention.test_attention import (
    INFINITE,
    differences_where_scores_are_infinite,
    error,
    excess,
    flash_results,
    function_results,
    make_inputs,
)
from tests.attention.test_options import Case, launch_results
from tests.attention.test_options import excess as excess_of_case
from tests.attention.test_options import make_inputs as make_inputs_of_case
from tests.attention.test_options import results as results_of_case

pytest.importorskip("triton.experimental.gluon", reason="needs Triton with Gluon")

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import compile as compile_kernel
from triton.compiler import make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from cs336_systems.attention import chip, flash_attention, gpu_attention, triton_launch
from cs336_systems.attention.gpu_attention import GpuFlashAttention
from cs336_systems.attention.hopper import launch
from cs336_systems.attention.hopper.launch import is_faster
from cs336_systems.attention.hopper.tile_config import ForwardTiles
from cs336_systems.attention.launcher import Launch
from cs336_systems.attention.options import Options

BF16, FP16 = torch.bfloat16, torch.float16
HOPPER = GPUTarget("cuda", 90, 32)
LIMIT = pytest.mark.timeout(120, method="thread")  # a signal would wait for the device


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def on_gpu(test):
    for mark in (pytest.mark.gpu, pytest.mark.skipif(not is_hopper(), reason="no Hopper GPU"), LIMIT):
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def always_these_kernels(monkeypatch):
    """Also where others are faster, and with a version of Triton that these tests have yet to pass with."""
    monkeypatch.setattr(launch, "is_faster", lambda *_: True)
    monkeypatch.setattr(gpu_attention, "TESTED_TRITON", (".".join(triton.__version__.split(".")[:2]),))
    gpu_attention._kernels.cache_clear()
    yield
    gpu_attention._kernels.cache_clear()


# batch, heads, n_queries, n_keys, d; dtypes. All with a causal mask and without. Tiles have 64, 128 or 192 queries and
# 128 keys: lengths at their edges, lengths that none divides, fewer queries than keys and more.
CORE = [  # part of the gate before measuring
    ((2, 3, 128, 128, 64), (BF16, FP16)),
    ((2, 3, 128, 128, 128), (BF16, FP16)),
    ((2, 3, 128, 128, 96), (BF16, FP16)),
    ((1, 2, 257, 1000, 64), (BF16,)),
    ((1, 2, 1000, 257, 128), (BF16,)),
    ((1, 2, 257, 390, 80), (BF16,)),
    ((2, 2, 300, 310, 40), (BF16,)),
]
MORE = [
    ((1, 2, 1, 1, 64), (BF16,)),
    ((1, 2, 1, 300, 64), (BF16, FP16)),
    ((1, 2, 300, 1, 64), (BF16,)),
    ((1, 2, 1, 300, 128), (BF16,)),
    ((1, 2, 300, 1, 128), (BF16, FP16)),
    ((1, 2, 1, 300, 96), (BF16,)),
    ((1, 2, 300, 1, 72), (BF16,)),
    ((2, 2, 63, 65, 64), (BF16,)),
    ((2, 2, 65, 63, 128), (BF16,)),
    ((1, 2, 192, 129, 64), (BF16,)),
    ((1, 2, 193, 127, 64), (BF16,)),
    ((1, 2, 257, 1000, 64), (FP16,)),
    ((1, 2, 1000, 257, 64), (BF16,)),
    ((1, 2, 257, 1000, 128), (BF16,)),  # most tiles of keys are seen by no query
    ((1, 2, 1000, 257, 128), (FP16,)),
    ((1, 5, 64, 1024, 64), (BF16,)),
    ((1, 7, 64, 1024, 128), (BF16,)),
    ((3, 5, 333, 333, 64), (BF16,)),
    ((3, 5, 333, 333, 128), (BF16,)),
    ((2, 2, 300, 300, 8), (BF16,)),
    ((2, 2, 310, 300, 72), (BF16, FP16)),
    ((2, 2, 193, 127, 80), (FP16,)),
    ((1, 2, 1000, 257, 88), (BF16,)),
    ((2, 2, 130, 390, 96), (FP16,)),
    ((2, 2, 310, 300, 104), (BF16,)),
    ((2, 4, 2048, 2048, 64), (BF16,)),
    ((2, 4, 2048, 2048, 80), (BF16,)),
    ((2, 4, 2048, 2048, 128), (BF16,)),
    ((1, 3, 4099, 4097, 64), (BF16,)),
    ((1, 3, 4097, 4099, 96), (BF16,)),
    ((1, 3, 4097, 4099, 128), (BF16,)),
]
CASES = [
    pytest.param(shape, dtype, causal, id=f"{shape} {str(dtype)[6:]} {'causal' if causal else 'full'}", marks=marks)
    for marks, lines in ((pytest.mark.numeric, CORE), ((), MORE))
    for shape, dtypes in lines
    for dtype in dtypes
    for causal in (True, False)
]
FORWARD_TILES = [
    (64, ForwardTiles(consumers=1, group=4)),
    (64, ForwardTiles(consumers=3, group=1)),
    (96, ForwardTiles(consumers=1, group=2)),
    (80, ForwardTiles(consumers=2, group=3)),
    (128, ForwardTiles(consumers=2, group=3)),
]


@on_gpu
@pytest.mark.parametrize(("shape", "dtype", "is_causal"), CASES)
def test_error_is_at_most_twice_that_of_pytorch(shape, dtype, is_causal):
    batch, heads, n_queries, n_keys, d = shape
    inputs = make_inputs((batch, heads, n_queries, d), n_keys, dtype, "cuda")
    assert not excess(function_results(GpuFlashAttention, inputs, is_causal), inputs, is_causal)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("keys", INFINITE)
@pytest.mark.parametrize("d", [64, 80, 128])
def test_infinite_scores(d, keys, is_causal):
    assert not differences_where_scores_are_infinite(flash_results, keys, is_causal, BF16, "cuda", d)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 300), (192, 129), (193, 127), (257, 1000), (700, 650)])
@pytest.mark.parametrize(("d", "tiles"), FORWARD_TILES, ids=str)
def test_forward_tiles(d, tiles, n_queries, n_keys, is_causal):
    """At lengths for which the defaults are others."""
    inputs = make_inputs((2, 3, n_queries, d), n_keys, BF16, "cuda")
    o, lse = launch.attention_forward(*inputs[:3], is_causal, tiles=tiles)
    assert not excess({"o": o, "lse": lse}, inputs, is_causal)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("d", [64, 80, 128])
def test_backward_groups(d, group, is_causal):
    inputs = make_inputs((2, 3, 650, d), 700, BF16, "cuda")
    q, k, v, grad_o = inputs
    o, lse = launch.attention_forward(q, k, v, is_causal)
    gradients = launch.attention_backward(grad_o, q, k, v, o, lse, is_causal, group=group)
    assert not excess(dict(zip(("dq", "dk", "dv"), gradients, strict=True)), inputs, is_causal)


@on_gpu
@pytest.mark.parametrize("d", [64, 96, 128])
def test_large_scores(d):
    """Scores of some hundreds, which only a running maximum survives; zero keys beyond the end would exceed them."""
    inputs = make_inputs((16, 333, d), 333, BF16, "cuda", scale=6.0)
    inputs[1] -= 8 * inputs[0].mean(-2, keepdim=True).sign()
    assert not excess(function_results(GpuFlashAttention, inputs, True), inputs, True, large_scores=True)


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
def test_scores_far_below_zero(d):
    """exp(0 - L) overflows, as a key beyond the end would have it."""
    inputs = make_inputs((4, 200, d), 200, BF16, "cuda")
    inputs[0] = inputs[0].abs() * 8
    inputs[1] = -inputs[1].abs() * 8
    for is_causal in (True, False):
        got = function_results(GpuFlashAttention, inputs, is_causal)
        assert not excess(got, inputs, is_causal, large_scores=True)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d"), [(100, 170, 64), (170, 100, 128), (90, 90, 40), (90, 170, 72), (170, 90, 80)]
)
def test_nothing_beyond_the_end_is_read(n_queries, n_keys, d, is_causal):
    inputs = make_inputs((2, 3, n_queries, d), n_keys, BF16, "cuda")
    surrounded = []
    for x in inputs:
        larger = torch.full((2, 3, x.shape[-2] + 70, d + 8), torch.nan, device="cuda", dtype=BF16)
        larger[..., : x.shape[-2], :d] = x
        surrounded.append(larger[..., : x.shape[-2], :d])
    assert not excess(function_results(GpuFlashAttention, surrounded, is_causal), inputs, is_causal)


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
@pytest.mark.parametrize("n", [70, 1100])
def test_strided_inputs_and_a_gradient_of_stride_zero(n, d):
    """Heads out of one projection, as models have them, and the gradient of o.sum()."""
    x = torch.randn(4, n, 3, 6, d, device="cuda", dtype=BF16, requires_grad=True)
    q, k, v = (t.transpose(1, 2) for t in x.unbind(2))
    o = GpuFlashAttention.apply(q, k, v, True)
    assert o.transpose(1, 2).is_contiguous(), "the output comes in the layout of q"
    (grad,) = torch.autograd.grad(o.sum(), x)
    copies = [t.detach().contiguous() for t in (q, k, v)]
    results = dict(zip(("dq", "dk", "dv"), (t.transpose(1, 2) for t in grad.unbind(2)), strict=True))
    assert not excess({"o": o.detach()} | results, [*copies, torch.ones_like(copies[0])], True)


@on_gpu
def test_what_a_tensor_map_does_not_take_is_copied():
    """A start at no multiple of 16 bytes, rows that start at none, keys shared by all heads."""
    storage = torch.randn(2 * 3 * 150 * 67 + 1, device="cuda", dtype=BF16)
    odd_rows = storage[:-1].view(2, 3, 150, 67)[..., :64]
    odd_start = storage[1:].view(2, 3, 150, 67)[..., 3:]
    shared = torch.randn(2, 1, 150, 64, device="cuda", dtype=BF16).expand(2, 3, 150, 64)
    inputs = [odd_rows, shared, odd_start, torch.randn(2, 3, 150, 64, device="cuda", dtype=BF16)]
    assert not excess(function_results(GpuFlashAttention, inputs, True), inputs, True)


@on_gpu
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d"), [(515, 390, 64), (515, 390, 80), (390, 515, 128), (1024, 1024, 64)]
)
def test_two_hundred_runs_agree(n_queries, n_keys, d):
    """All but dQ to the bit: a race or a lost wait would show in some run, a deadlock as a timeout."""
    q, k, v, grad_o = make_inputs((4, 8, n_queries, d), n_keys, BF16, "cuda")

    def results():
        o, lse = launch.attention_forward(q, k, v, True)
        return o, lse, *launch.attention_backward(grad_o, q, k, v, o, lse, True)

    first = results()
    for _ in range(200):
        again = results()
        for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), first, again, strict=True):
            if name == "dq":
                assert error(x, y) <= 1e-2 * x.double().norm().item()
            else:
                assert torch.equal(x, y), name


@on_gpu
def test_determinism_where_pytorch_asks_for_it(monkeypatch):
    inputs = make_inputs((4, 8, 1100, 64), 1100, BF16, "cuda")
    monkeypatch.setattr(triton_launch, "attention_backward", None)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (function_results(GpuFlashAttention, inputs, True) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not excess(first, inputs, True)


@on_gpu
@pytest.mark.parametrize("window_left", [-1, 200], ids=["", "window"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "heads", "d"),
    [
        (1100, 1100, 8, 64),
        (1100, 1300, 8, 80),
        (700, 257, 6, 96),
        (257, 700, 6, 128),
        (700, 700, 6, 128),
        (4100, 4100, 40, 64),
        (4100, 4100, 40, 128),
        (64, 64, 2, 64),
        (1, 300, 2, 128),
    ],
)
def test_twenty_deterministic_runs_agree(n_queries, n_keys, heads, d, is_causal, window_left):
    """While other kernels take SMs away; 40 heads of 4100 keys need ten times as many programs as there are SMs."""
    if window_left >= 0 and not is_causal:
        pytest.skip("the Triton kernels have windows without a causal mask")
    case = Case(((n_queries, n_keys),), d, heads, heads // 2, is_causal, (window_left, -1), deterministic=True)
    inputs = make_inputs_of_case(case, BF16, "cuda", batch=1)
    first = launch_results(case, inputs, launch)
    assert n_queries > 4000 or not excess_of_case(case, inputs, dict(first))
    load, stream = torch.randn(2048, 2048, device="cuda", dtype=BF16), torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            for _ in range(10):
                load @ load
        again = launch_results(case, inputs, launch)
        assert all(torch.equal(first[name], again[name]) for name in first)


@on_gpu
def test_autocast_and_any_leading_axes():
    q, k, v, grad_o = make_inputs((2, 2, 3, 300, 64), 300, torch.float32, "cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast("cuda", BF16):
        o = flash_attention(*leaves, True)
    assert o.dtype == BF16
    gradients = torch.autograd.grad(o, leaves, grad_o.to(BF16))
    got = dict(zip(("o", "dq", "dk", "dv"), (x.detach().bfloat16() for x in (o, *gradients)), strict=True))
    assert not excess(got, [x.detach().bfloat16() for x in (q, k, v, grad_o)], True)


@on_gpu
@pytest.mark.parametrize("n", [200, 1500])
def test_compiled_in_one_graph(n):
    inputs = make_inputs((4, 4, n, 64), n, BF16, "cuda")
    leaves = [x.requires_grad_() for x in inputs[:3]]
    o = torch.compile(flash_attention, fullgraph=True)(*leaves, True)
    gradients = torch.autograd.grad(o, leaves, inputs[3])
    got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
    assert not excess(got, [x.detach() for x in inputs], True)


@on_gpu
def test_a_cuda_graph_replays_with_new_inputs():
    inputs = make_inputs((2, 3, 333, 128), 333, BF16, "cuda")
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    grad_o = inputs[3].clone()

    def results():
        o = GpuFlashAttention.apply(*leaves, True)
        return o, *torch.autograd.grad(o, leaves, grad_o)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            results()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results()
    new = [torch.randn_like(x) for x in inputs]
    with torch.no_grad():
        for x, y in zip((*leaves, grad_o), new, strict=True):
            x.copy_(y)
    graph.replay()
    got = dict(zip(("o", "dq", "dk", "dv"), (x.detach() for x in captured), strict=True))
    assert not excess(got, new, True)


@on_gpu
def test_checkpointing():
    q, k, v, grad_o = make_inputs((2, 3, 300, 64), 300, BF16, "cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    apply = GpuFlashAttention.apply
    o = torch.utils.checkpoint.checkpoint(apply, *leaves, True, use_reentrant=False)
    got = torch.autograd.grad(o, leaves, grad_o)
    assert not excess(
        dict(zip(("dq", "dk", "dv"), got, strict=True)), [q.detach(), k.detach(), v.detach(), grad_o], True
    )


@on_gpu
@pytest.mark.parametrize("shape", [(2, 100, 64), (2, 3, 100, 128)])
def test_operators_keep_their_contract(shape):
    q, k, v, grad_o = make_inputs(shape, 70, BF16, "cuda")
    o, lse = torch.ops.cs336_systems.attention_forward(q, k, v, True)
    torch.library.opcheck(torch.ops.cs336_systems.attention_forward, (q, k, v, True))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")  # the fourth compares two runs' dQ too
    arguments = (grad_o, q, k, v, o, lse, True)
    torch.library.opcheck(torch.ops.cs336_systems.attention_backward, arguments, test_utils=tests)


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("d", "d_v"), [(64, 64), (128, 128), (72, 72), (40, 64), (96, 64), (64, 128)])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=str)
def test_shared_heads_scale_width_of_values_and_the_gradient_of_l(heads, d, d_v, is_causal):
    inputs = make_inputs((2, heads[0], 333, d), 300, BF16, "cuda", kv_heads=heads[1], d_v=d_v)
    grad_lse = torch.randn(2, heads[0], 333, device="cuda")
    got = flash_results(inputs, is_causal, 0.15, grad_lse)
    assert not excess(got, inputs, is_causal, scale=0.15, grad_lse=grad_lse)


SEQUENCES = [(1, 1), (64, 64), (193, 193), (1001, 1001), (700, 257), (257, 700)]
WINDOWS = [0, 1, 63, 64, 129, 300]


@on_gpu
@pytest.mark.parametrize("lengths", SEQUENCES, ids=str)
@pytest.mark.parametrize("d", [64, 80, 128])
def test_windows_and_sinks(d, lengths):
    for window in WINDOWS:
        case = Case((lengths,), d, 4, 2, True, (window, -1), has_sinks=window % 2 == 1)
        inputs = make_inputs_of_case(case, BF16, "cuda")
        assert not excess_of_case(case, inputs, launch_results(case, inputs, launch)), window


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("d", [40, 64, 96, 128])
def test_sinks(d, is_causal):
    case = Case(((1001, 700),), d, 4, 2, is_causal, has_sinks=True)
    inputs = make_inputs_of_case(case, FP16, "cuda")
    assert not excess_of_case(case, inputs, launch_results(case, inputs, launch))


@on_gpu
def test_options_reach_these_kernels(monkeypatch):
    """Forward and backward, but for windows without a causal mask."""
    case = Case(((700, 700),), 64, 4, 2, True, (100, -1), 2.0, has_sinks=True, deterministic=True)
    inputs = make_inputs_of_case(case, BF16, "cuda")
    monkeypatch.setattr(triton_launch, "attention_forward", None)
    with pytest.raises(TypeError):
        results_of_case(replace(case, is_causal=False), inputs)
    monkeypatch.setattr(triton_launch, "attention_backward", None)
    assert not excess_of_case(case, inputs, results_of_case(case, inputs))


@on_gpu
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lengths", [(193, 193), (1001, 700), (257, 700)], ids=str)
@pytest.mark.parametrize("d", [64, 80, 128])
def test_softcap(d, lengths, is_causal):
    """Caps that change all scores and few, alone and with a window and sinks."""
    for softcap, window, dtype in ((0.5, -1, BF16), (2.0, 100, BF16), (30.0, -1, FP16)):
        window = (window if is_causal else -1, -1)
        case = Case((lengths,), d, 4, 2, is_causal, window, softcap, has_sinks=softcap == 2.0)
        inputs = make_inputs_of_case(case, dtype, "cuda")
        assert not excess_of_case(case, inputs, launch_results(case, inputs, launch)), softcap


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
@pytest.mark.parametrize("tiles", [None, 1, 2, 3])
def test_tiles_of_windows(tiles, d):
    """Each number of warpgroups per program, at lengths for which the defaults are others."""
    if (tiles, d) in ((1, 128), (3, 128), (3, 80)):
        pytest.skip("they do not fit")
    q, k, v, _ = make_inputs((2, 3, 1100, d), 1100, BF16, "cuda")
    options = Options(window_left=200)
    chosen = tiles and ForwardTiles(consumers=tiles, group=3)
    o, lse = launch.attention_forward(q, k, v, True, None, *options, tiles=chosen)
    want = triton_launch.attention_forward(q, k, v, True, None, *options)
    torch.testing.assert_close((o, lse), want, rtol=0.02, atol=0.02)


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
def test_a_hundred_runs_with_a_window_agree(d):
    q, k, v, grad_o = make_inputs((4, 8, 515, d), 515, BF16, "cuda")
    options = Options(window_left=100)

    def results():
        o, lse = launch.attention_forward(q, k, v, True, None, *options)
        return o, lse, *launch.attention_backward(grad_o, q, k, v, o, lse, True, None, None, *options)[1:]

    first = results()
    for _ in range(100):
        assert all(torch.equal(x, y) for x, y in zip(first, results(), strict=True))


@on_gpu
@pytest.mark.parametrize("d", [64, 80, 128])
def test_shared_heads_as_models_call_them(d):
    """Heads out of projections, eager and compiled, without L."""
    q = torch.randn(2, 1100, 8, d, device="cuda", dtype=BF16).transpose(1, 2)
    k, v = torch.randn(2, 1100, 2, 2, d, device="cuda", dtype=BF16).transpose(1, 3).unbind(2)
    grad_o = torch.randn_like(q)
    for function in (flash_attention, torch.compile(flash_attention, fullgraph=True, backend="aot_eager")):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = function(*leaves, True, enable_gqa=True)
        gradients = torch.autograd.grad(o, leaves, grad_o)
        got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
        assert not excess(got, [q, k, v, grad_o], True)


@on_gpu
def test_per_sample_gradients():
    q, k, v, _ = make_inputs((3, 4, 200, 64), 200, BF16, "cuda", kv_heads=2)

    def loss(*leaves):
        return flash_attention(*leaves, True, enable_gqa=True).float().sum()

    got = dict(zip(("dq", "dk", "dv"), torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v), strict=True))
    assert not excess(got, [q, k, v, torch.ones_like(q)], True)


@on_gpu
def test_kernels_are_told_apart_by_what_they_were_compiled_for():
    for dtype in (BF16, FP16, BF16):
        for batch, heads, n in ((1, 1, 1), (2, 8, 16), (2, 8, 128), (1, 1, 129)):
            inputs = make_inputs((batch, heads, n, 64), n, dtype, "cuda")
            for _ in range(2):
                assert not excess(function_results(GpuFlashAttention, inputs, True), inputs, True)


# What can be seen without a GPU.


# batch, heads, tokens, d: as timed on an H200, or bound by the host
FASTER = [(8, 32, 1024, 64), (4, 32, 1024, 80), (4, 32, 2048, 64), (1, 16, 16384, 128), (1, 4, 8192, 64)]
FASTER += [(1, 8, 4096, 128), (1, 1, 32768, 64), (16, 32, 512, 128)]
NOT_FASTER = [(1, 16, 512, 64), (1, 16, 1024, 128), (1, 16, 2048, 64), (1, 1, 8192, 128), (1, 1, 16384, 64)]
NOT_FASTER += [(4, 32, 1024, 64), (2, 32, 1024, 128), (4, 32, 512, 64), (32, 32, 256, 128), (4, 32, 4096, 32)]


@pytest.mark.parametrize(("shape", "faster"), [(x, True) for x in FASTER] + [(x, False) for x in NOT_FASTER])
def test_they_are_chosen_where_they_were_faster(shape, faster):
    assert is_faster(torch.Size(shape), torch.Size(shape)) == faster


def test_an_untested_triton_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(gpu_attention, "chip_of", lambda _: chip.H200)
    monkeypatch.setattr(gpu_attention, "TESTED_TRITON", ("3.6", "2.0"))
    monkeypatch.setattr(triton, "__version__", "9.9.0")
    shape = torch.Size((8, 32, 1024, 64))
    with pytest.warns(UserWarning, match=r"tested with Triton 3\.6 to 2\.0, not with 9\.9\.0") as warned:
        assert "Triton 9.9.0" in [gpu_attention.hopper_obstacle(0, BF16, shape, shape) for _ in range(2)][1]
    assert len(warned) == 1


WIDTHS = ((64, (1, 3)), (80, (1, 2)), (96, (1, 2)), (128, (2,)))  # d, consumers in the forward pass


def launches() -> dict[str, Launch]:
    """Launches of each kernel, causal, bf16, at a length that no tile divides, with and without shared key heads."""
    result = {}
    for (d, kinds), (kv_heads, shared) in itertools.product(WIDTHS, ((3, ""), (1, ", shared"))):
        shape, k_shape = torch.Size((2, 3, 1000, d)), torch.Size((2, kv_heads, 1000, d))
        strides = (torch.empty(shape, device="meta").stride(),) * 8
        for consumers in kinds:
            tiles = ForwardTiles(consumers=consumers, group=2)
            forward = launch._forward_launch(tiles, True, None, BF16, shape, k_shape, strides[:4])
            result[f"forward, d {d}, {consumers} consumers{shared}"] = forward
        backward = launch._backward_launches(None, True, None, BF16, shape, k_shape, strides)
        result[f"backward, d {d}{shared}"] = backward.main
        if not shared:
            tiles = ForwardTiles(consumers=kinds[-1], group=2)
            options = (300, 30.0, torch.float32)
            forward = launch._forward_launch(tiles, True, None, BF16, shape, k_shape, strides[:4], *options)
            result[f"forward, d {d}, window, softcap, sinks"] = forward
            for name, options in (("window", (300,)), ("softcap, deterministic", (-1, 30.0, True))):
                backward = launch._backward_launches(None, True, None, BF16, shape, k_shape, strides, *options)
                result[f"backward, d {d}, {name}"] = backward.main
    return result


def source(each: Launch) -> GluonASTSource:
    """The source that Triton compiles for a launch."""
    names = each.kernel.arg_names
    pointers = len(names) - len(each.descriptors) - len(each.rest)
    numbers = ["constexpr" if x is None else "fp32" if isinstance(x, float) else "i32" for x in each.rest]
    pointers = ["*i32" if name == "added" else "*fp32" for name in names[len(each.descriptors) :][:pointers]]
    types = [*map(descriptor_type, each.descriptors), *pointers, *numbers]
    arguments = zip(names[::-1], each.rest[::-1], each.kernel.params[::-1], strict=False)
    constants = {name: value for name, value, parameter in arguments if parameter.is_constexpr or value is None}
    signature = {name: "constexpr" if name in constants else kind for name, kind in zip(names, types, strict=True)}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types) if kind[0] == "*"}
    return GluonASTSource(each.kernel, signature, constants, aligned)


def descriptor_type(make) -> str:
    """Of what a descriptor's maker was told about its tensor."""
    block, layout = make.keywords["block_shape"], make.keywords["layout"]
    dtype = "fp32" if layout.element_bitwidth == 32 else "bf16"
    return f"tensordesc<{dtype}[{', '.join(map(str, block))}],{layout!r}>"


@pytest.mark.parametrize("name", launches())
def test_kernels_are_valid_gluon(name):
    each = launches()[name]
    backend = make_backend(HOPPER)
    options = backend.parse_options(each.options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source(each).make_ir(HOPPER, options, functions, backend.get_module_map(), context)
    assert module.verify()


@pytest.mark.parametrize(
    ("name", "products", "saved", "reloaded"),
    [
        ("backward, d 64", 16, 40, 0),
        pytest.param("backward, d 64, shared", 16, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 64, window", 16, 72, 6, marks=pytest.mark.slow),
        pytest.param("backward, d 64, softcap, deterministic", 16, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 80", 26, 40, 0, marks=pytest.mark.slow),
        pytest.param("backward, d 96", 28, 64, 1, marks=pytest.mark.slow),
    ],
)
def test_products_of_the_kernels_with_the_fewest_free_registers_stay_asynchronous(
    tmp_path, name, products, saved, reloaded
):
    """Elsewhere ptxas would wait for each product at once, ignore the registers asked for, or spill in the main loops.

    Some bytes are what warpgroups save around all their work, and in the few steps that need a mask; in the others one
    register may be reloaded, and with a window at d 64 six are saved or reloaded in 355 instructions.
    """
    each = launches()[name]
    compiled = compile_kernel(source(each), target=HOPPER, options=each.options)
    assert compiled.metadata.shared <= 227 * 1024
    cubin = tmp_path / "kernel.cubin"
    command = [get_ptxas(90).path, "-arch=sm_90a", "-v", "-o", str(cubin), "-"]
    log = subprocess.run(command, input=compiled.asm["ptx"], capture_output=True, text=True, check=True).stderr
    assert not re.search(r"C75\d\d", log), log
    assert int(re.search(r"(\d+) bytes spill stores", log)[1]) <= saved, log
    command = [knobs.nvidia.nvdisasm.path, "-c", str(cubin)]
    loops = innermost_loops(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Of each of the two warpgroups for dK and dV: one with a mask, which is longer, and one without.
    main = sorted((loop for loop in loops if loop.count("HGMMA") == products), key=len)[:2]
    assert len(main) == 2
    assert all(len(re.findall(r"\b(STL|LDL)\b", loop)) <= reloaded for loop in main)


def innermost_loops(assembly: str) -> list[str]:
    """The instructions of each loop that has no other in it."""
    lines = assembly.splitlines()
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if line.startswith(".L_x_")}
    jumps = [(re.search(r"BRA.*`\((\.L_x_\d+)\)", line), i) for i, line in enumerate(lines)]
    loops = [(labels[jump[1]], end) for jump, end in jumps if jump and labels[jump[1]] < end]
    inner = [loop for loop in loops if not any(loop != x and loop[0] <= x[0] and x[1] <= loop[1] for x in loops)]
    return ["\n".join(lines[start:end]) for start, end in inner]
