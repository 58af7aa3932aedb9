"""Attention on a GPU: against float64 by the rule of cases.py, and as PyTorch sees it.

Tests with the fixture `kernels` run the Triton kernels and, on a Hopper GPU, its own.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from cs336_systems.attention import chip, flash_attention, flash_attention_varlen, gpu_attention
from tests.attention.cases import (
    Case,
    check,
    dense,
    excess,
    function_results,
    launch_results,
    make_inputs,
    parametrized,
    results,
    without_lse,
)

pytestmark = pytest.mark.gpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# batch, heads, n_queries, n_keys, d; dtypes; causal or not. Every row of the tile tables, tiles that do and do not
# divide the lengths, unequal lengths. Each line compiles kernels of its own, so the lines are few.
CORE = [  # part of the gate before measuring
    ((2, 3, 128, 128, 64), (BF16, FP32), True),
    ((2, 2, 333, 300, 16), (BF16, FP32), True),
    ((1, 2, 257, 300, 128), (BF16, FP32), True),
    ((16, 1, 2049, 2049, 64), (BF16, FP32), True),  # above 16384 rows: descriptors
    ((32, 1, 2100, 2100, 128), (BF16,), True),  # above 65536 rows: the largest tiles
    ((32, 1, 2100, 2100, 64), (BF16,), True),
    ((1, 2, 1001, 1100, 64), (BF16,), True),  # few rows
    ((1, 2, 1001, 1100, 128), (BF16, FP32), True),
]
MORE = [
    ((2, 3, 77, 77, 64), (BF16, FP16, FP32), False),
    ((1, 2, 257, 1000, 64), (FP16, FP32), True),
    ((1, 2, 1000, 257, 128), (BF16, FP32), True),
    ((2, 2, 100, 100, 32), (BF16, FP32), False),
    ((2, 2, 150, 200, 40), (BF16, FP32), True),
    ((2, 2, 200, 150, 80), (BF16, FP32), False),
    ((2, 2, 90, 110, 17), (BF16, FP32), True),  # rows that start at no multiple of 16 bytes: no descriptors
    ((1, 2, 200, 180, 256), (BF16, FP32), True),
    ((1, 2, 1, 300, 64), (BF16, FP32), True),
    ((1, 2, 1, 300, 64), (BF16, FP32), False),
    ((1, 2, 300, 1, 128), (BF16, FP32), False),
    ((16, 1, 1041, 900, 128), (BF16, FP16, FP32), True),
    ((16, 1, 1041, 900, 64), (BF16, FP32), False),
    ((8, 1, 2100, 2200, 40), (BF16, FP32), True),
    ((8, 1, 2100, 2100, 17), (BF16,), True),
    ((32, 1, 2049, 2000, 64), (BF16, FP16), False),
    ((32, 1, 2100, 1500, 128), (FP16,), False),
    ((64, 1, 1025, 1100, 16), (BF16, FP32), True),
    ((1, 2, 3001, 700, 128), (BF16,), True),
    ((1, 2, 3001, 700, 64), (BF16,), True),
    ((1, 1, 5001, 700, 128), (BF16, FP32), True),
    ((1, 1, 5001, 700, 64), (BF16,), True),
    ((1, 1, 9001, 700, 128), (BF16, FP32), True),
    ((4, 1, 2300, 300, 100), (BF16,), True),
    ((1, 1, 17001, 100, 256), (BF16,), True),
    ((1, 1, 70001, 70, 64), (BF16,), True),
]
CASES = parametrized(CORE, MORE, of_core=pytest.mark.numeric)
DOCUMENTS = ((1, 1), (17, 17), (0, 0), (1001, 1001), (64, 64), (333, 333))
UNEQUAL = ((1, 200), (300, 1), (513, 400), (17, 0), (0, 40), (700, 1001))

OPTIONS = {
    "causal window": (Case(((1001, 1001),), 64, 4, 2, True, (255, -1)), (BF16, FP32)),
    "window": (Case(((1001, 777),), 128, 4, 4, False, (100, 300)), (BF16, FP32)),
    "softcap": (Case(((1001, 1001),), 128, 4, 2, True, softcap=2.0), (BF16, FP16, FP32)),
    "sinks": (Case(((1001, 1001),), 64, 4, 2, True, has_sinks=True), (BF16, FP32)),
    "packed": (Case(DOCUMENTS, 64, 4, 2, True, packed=True), (BF16, FP32)),
    "packed, all": (Case(UNEQUAL, 128, 4, 2, True, (65, -1), 2.0, True, True, 70), (BF16, FP32)),
    "17 tokens": (Case(((17, 17),), 40, 4, 2, True, (5, -1), 2.0, True), (BF16, FP32)),
    "one query": (Case(((1, 1001),), 64, 4, 4, False, (3, 500)), (BF16,)),
    "one key": (Case(((1001, 1),), 64, 4, 4, False, (500, 3)), (BF16,)),
    "queries without keys": (Case(((1001, 17),), 128, 4, 2, True, (100, -1)), (BF16, FP32)),
    "keys without queries": (Case(((17, 1001),), 64, 4, 2, False, (100, 33)), (BF16,)),
    "to the left": (Case(((1001, 1001),), 64, 2, 2, False, (700, -1)), (BF16,)),
    "to the right": (Case(((1001, 1001),), 64, 2, 2, False, (-1, 7)), (BF16,)),
    "softcap, all keys": (Case(((1001, 700),), 40, 4, 4, softcap=20.0), (BF16, FP32)),
    "sinks, all keys": (Case(((1001, 1001),), 40, 4, 1, has_sinks=True), (FP16,)),
    "wide heads": (Case(((333, 333),), 256, 4, 2, True, (99, -1), 2.0, True), (BF16, FP32)),
    "odd heads": (Case(((333, 333),), 17, 4, 2, False, (99, 20), 2.0, True), (BF16,)),
    "descriptors": (Case(((2100, 2100),), 64, 16, 4, True, (1023, -1), has_sinks=True), (BF16,)),
    "descriptors, wide window": (Case(((2100, 2000),), 128, 16, 16, False, (1023, 511)), (BF16,)),
    "descriptors, softcap": (Case(((2100, 2100),), 128, 16, 4, False, softcap=20.0), (BF16,)),
    "descriptors, softcap, causal": (Case(((2100, 2100),), 64, 16, 4, True, softcap=2.0), (BF16,)),
    "packed, unequal": (Case(UNEQUAL, 40, 4, 1, False, packed=True), (BF16, FP32)),
    "packed, window": (Case(DOCUMENTS, 64, 4, 4, False, (33, 64), packed=True), (FP16,)),
    "packed, many": (Case(((1501, 1501),) * 8, 128, 2, 1, True, packed=True), (BF16,)),
    "packed, many, window": (Case(((1501, 1401),) * 8, 64, 2, 1, True, (333, -1), packed=True, extra=77), (BF16,)),
    "packed, many, all keys": (Case(((1037, 1201),) * 16, 128, 1, 1, False, packed=True), (FP16,)),
    "packed, short": (Case(((3, 4),) * 1100, 64, 2, 2, True, packed=True, extra=5), (BF16,)),
}
WITH_OPTIONS = [
    pytest.param(case, dtype, id=f"{name} {str(dtype)[6:]}")
    for name, (case, dtypes) in OPTIONS.items()
    for dtype in dtypes
]


@pytest.fixture(autouse=True)
def full_precision_reference():
    assert torch.backends.cuda.matmul.allow_tf32 is False, "the fp32 reference would be in TF32"


@pytest.fixture
def functions():
    return pytest.importorskip("cs336_systems.attention.triton_attention", exc_type=ImportError)


def heads_out_of_one_projection(inputs):
    """Inputs in the layout that models have."""
    strided = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in inputs.items() if x.dim() == 4}
    return inputs | strided


def compiled(function, **options):
    torch._dynamo.reset()  # of what other tests have compiled there are too many shapes
    return torch.compile(function, fullgraph=True, **options)


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_error_is_at_most_twice_that_of_pytorch(functions, case, dtype):
    check(case, dtype, "cuda", partial(function_results, functions.TritonFlashAttention))


@pytest.mark.parametrize(("case", "dtype"), WITH_OPTIONS)
def test_error_with_options(case, dtype):
    check(case, dtype, "cuda")


@pytest.mark.parametrize("table", ["KB_99", "KB_163"])
@pytest.mark.parametrize("d", [64, 100, 256])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_tiles_of_other_chips(dtype, d, table):
    from cs336_systems.attention import tile_config, triton_launch

    width = max(64, 1 << (d - 1).bit_length())
    forward, backward = getattr(tile_config, table)[dtype is FP32, width]
    compute = partial(launch_results, triton_launch, forward_tiles=forward, tiles=backward)
    check(dense((1, 2, 333, d), 300, True), dtype, "cuda", compute)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_gpus_before_ampere_run_sdpa_or_tiles(monkeypatch, request, dtype, is_causal):
    """With grouped queries; compiled; and tiled PyTorch where L is asked for."""
    request.addfinalizer(gpu_attention._kernels.cache_clear)
    for module in (chip, gpu_attention):
        monkeypatch.setattr(module, "triton_obstacle", lambda chip: "as on a T4")
    gpu_attention._kernels.cache_clear()
    case = dense((2, 4, 130, 17), 50, is_causal, kv_heads=2)
    check(case, dtype, "cuda")
    check(case, dtype, "cuda", partial(results, wrap=compiled))
    check(replace(case, scale=0.3, uses_lse=True), dtype, "cuda")


@pytest.mark.parametrize(
    ("n", "d", "dtype"), [(333, 64, BF16), (333, 96, BF16), (333, 128, BF16), (333, 64, FP32), (2049, 64, BF16)]
)
def test_large_scores(kernels, n, d, dtype):
    """Scores of some hundreds, which only a running maximum survives; zero keys beyond the end would exceed them."""
    case = dense((1, 16, n, d), n, True, factor=6.0)
    inputs = make_inputs(case, dtype, "cuda")
    inputs["k"] -= 8 * inputs["q"].mean(-2, keepdim=True).sign()
    assert not excess(case, inputs, results(case, inputs))


@pytest.mark.numeric
@pytest.mark.parametrize("n", [70, 1100])
@pytest.mark.parametrize("d", [64, 80, 128])
def test_strided_inputs_and_a_gradient_of_stride_zero(kernels, d, n):
    """Heads out of one projection, as models have them, and the gradient of o.sum()."""
    x = torch.randn(4, n, 3, 6, d, device="cuda", dtype=BF16, requires_grad=True)
    q, k, v = (t.transpose(1, 2) for t in x.unbind(2))
    o = flash_attention(q, k, v, True)
    assert o.transpose(1, 2).is_contiguous(), "the output comes in the layout of q"
    (grad,) = torch.autograd.grad(o.sum(), x)
    case = dense((4, 6, n, d), n, True)
    inputs = make_inputs(case, BF16, "cuda") | {"q": q.detach(), "k": k.detach(), "v": v.detach()}
    inputs["do"] = torch.ones_like(inputs["q"])
    assert not excess(case, inputs, without_lse(o, *(t.transpose(1, 2) for t in grad.unbind(2))))


@pytest.mark.parametrize(("n", "d", "dtype"), [(300, 64, BF16), (2200, 64, BF16), (2200, 128, BF16), (2200, 64, FP32)])
@pytest.mark.parametrize("asked_by", ["an option", "PyTorch"])
def test_the_same_bits_every_time(kernels, asked_by, n, d, dtype, request):
    torch.use_deterministic_algorithms(asked_by == "PyTorch")
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    case = dense((1, 16, n, d), n, True, deterministic=asked_by == "an option")
    inputs = make_inputs(case, dtype, "cuda")
    first = results(case, inputs)
    for _ in range(5):
        again = results(case, inputs)
        assert all(torch.equal(first[name], again[name]) for name in first)
    torch.use_deterministic_algorithms(False)
    assert not excess(case, inputs, first)


DENSE = {f"{n} tokens": dense((4, 4, n, 64), n, True) for n in (200, 1500)}
MASKED = {name: OPTIONS[name][0] for name in ("causal window", "packed, all")}


@pytest.mark.parametrize("case", [*DENSE.values(), *MASKED.values()], ids=[*DENSE, *MASKED])
def test_compiled_in_one_graph(kernels, case):
    check(case, BF16, "cuda", partial(results, wrap=compiled))


def test_compiled_function_with_the_loss_of_a_sum(functions):
    """As the leaderboard runs it: torch.compile of apply, then o.sum().backward()."""
    case = dense((1, 16, 2048, 64), 2048, True)
    inputs = {name: x[0] for name, x in make_inputs(case, BF16, "cuda").items() if name != "sinks"}
    inputs["do"] = torch.ones_like(inputs["do"])
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    o = torch.compile(functions.TritonFlashAttention.apply)(*leaves, True)
    o.sum().backward()
    assert not excess(case, inputs, without_lse(o, *(x.grad for x in leaves)))


def test_autocast_and_any_leading_axes(kernels):
    case = dense((2, 2, 3, 300, 64), 300, True)
    inputs = make_inputs(case, FP32, "cuda")
    for wrap in (lambda function: function, compiled):
        with torch.autocast("cuda", BF16):
            got = results(case, inputs, wrap)
        assert got["o"].dtype == BF16
        assert got["dq"].dtype == got["dk"].dtype == got["dv"].dtype == FP32
        narrow = {name: x.bfloat16() for name, x in got.items()}
        assert not excess(case, {name: x.bfloat16() for name, x in inputs.items()}, narrow)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("shape", [(2, 100, 64), (2, 3, 100, 16), (2, 3, 100, 128)], ids=str)
@pytest.mark.parametrize("name", ["flash", "attention"])
def test_operators_keep_their_contract(functions, kernels, name, shape, dtype):
    forward, backward = (getattr(torch.ops.cs336_systems, f"{name}_{kind}") for kind in ("forward", "backward"))
    q, grad_o = torch.randn(2, *shape, device="cuda", dtype=dtype)
    k, v = torch.randn(2, *shape[:-2], 70, shape[-1], device="cuda", dtype=dtype)
    o, lse = forward(q, k, v, True)
    torch.library.opcheck(forward, (q, k, v, True))
    tests = ["test_schema", "test_faketensor", "test_autograd_registration"]
    if kernels == "Triton":  # whose dQ has the same bits in both of its runs
        tests.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(backward, (grad_o, q, k, v, o, lse, None, True), test_utils=tests)


# q's shape and number of keys, with 2 heads of keys: tiles without preprocess, with it, with descriptors.
GROUPED = [((2, 4, 300, 64), 333), ((1, 6, 1001, 128), 1100), ((4, 4, 2049, 64), 2049), ((1, 4, 150, 256), 100)]


@pytest.mark.numeric
@pytest.mark.parametrize("shape_and_keys", GROUPED, ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shared_heads_of_keys(kernels, shape_and_keys, dtype):
    """As models call it, without L, eager and compiled, and with it."""
    case = dense(*shape_and_keys, True, kv_heads=2, scale=0.2)
    inputs = heads_out_of_one_projection(make_inputs(case, dtype, "cuda"))
    assert not excess(case, inputs, results(case, inputs))
    assert not excess(case, inputs, results(case, inputs, partial(compiled, backend="aot_eager")))
    check(replace(case, uses_lse=True), dtype, "cuda")


def test_shared_heads_of_keys_are_not_repeated():
    """Heads of keys, 1/32 of q's heads: repeating them would take as much as q does, three times."""
    q = torch.randn(1, 32, 8192, 64, device="cuda", dtype=BF16)
    k, v = torch.randn(2, 1, 1, 8192, 64, device="cuda", dtype=BF16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    flash_attention(q, k, v, True, enable_gqa=True)
    assert torch.cuda.max_memory_allocated() - before < 1.5 * q.nbytes  # the output and L


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_compiled_backward(functions, is_causal, dtype):
    """The second way backward: Triton forward, compiled PyTorch backward."""
    compute = partial(function_results, functions.TritonForwardCompiledBackward)
    check(dense((1, 4, 300, 64), 300, is_causal), dtype, "cuda", compute)


@pytest.mark.parametrize("options", [{}, {"window_size": (1023, 0), "sinks": torch.zeros(1)}], ids=["", "options"])
def test_memory_is_linear(options):
    """65536 queries, whose score matrix alone would take 8 GiB in bf16."""
    torch.cuda.empty_cache()
    q, k, v, grad_o = (torch.randn(1, 65536, 64, device="cuda", dtype=BF16) for _ in range(4))
    options = {name: x.cuda().requires_grad_() if name == "sinks" else x for name, x in options.items()}
    leaves = [x.requires_grad_() for x in (q, k, v, *options.values()) if isinstance(x, torch.Tensor)]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(flash_attention(q, k, v, True, **options), leaves, grad_o)
    assert torch.cuda.max_memory_allocated() - before < 16 * q.nbytes


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_on_a_device_that_is_not_the_current_one():
    assert torch.cuda.current_device() == 0
    check(dense((1, 2, 100, 64), 100, True, uses_lse=True), BF16, "cuda:1")


def test_kernels_are_distinguished_by_what_they_were_compiled_for(kernels):
    for dtype in (BF16, FP16, BF16):
        for batch, heads, n in ((1, 1, 1), (2, 8, 16), (2, 8, 128), (1, 1, 129), (1, 16, 1100)):
            for _ in range(2):
                check(dense((batch, heads, n, 64), n, True), dtype, "cuda")


def recorded(compute):
    """A CUDA graph of a call, and its result, which replays overwrite."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, compute()


def test_a_cuda_graph_replays_with_new_inputs(kernels):
    case = dense((2, 3, 333, 128), 333, True)
    inputs = make_inputs(case, BF16, "cuda")
    graph, got = recorded(lambda: results(case, inputs))
    for name in ("q", "k", "v", "do"):
        inputs[name].copy_(torch.randn_like(inputs[name]))
    graph.replay()
    assert not excess(case, inputs, got)


def test_a_cuda_graph_replays_with_other_documents(kernels):
    """Nothing of the bounds is read back."""
    q = torch.randn(600, 4, 64, device="cuda", dtype=BF16)
    ends = torch.tensor([0, 100, 600, 600], device="cuda", dtype=torch.int32)
    graph, o = recorded(lambda: flash_attention_varlen(q, q, q, ends, ends, is_causal=True))
    ends.copy_(torch.tensor([0, 17, 300, 599]))
    graph.replay()
    parts = (slice(0, 17), slice(17, 300), slice(300, 599))
    want = [flash_attention(*[q[part].transpose(0, 1)] * 3, True).transpose(0, 1) for part in parts]
    torch.testing.assert_close(o[:599], torch.cat(want), rtol=0.02, atol=0.02)
    assert not o[599:].any()


@pytest.mark.parametrize("n", [100, 17001])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_what_is_no_number_stays_in_its_document(kernels, d, n, is_causal):
    """With pointers, and with descriptors, which load rows of the next document."""
    case = Case(((n, n), (65, 65)), d, 2, 2, is_causal, packed=True)
    inputs = make_inputs(case, BF16, "cuda")
    for name in ("q", "k", "v", "do", "dlse"):
        inputs[name][:, :, n:] = torch.nan
    got = results(case, inputs)
    assert all(x[:, :, :n].isfinite().all() for x in got.values())
