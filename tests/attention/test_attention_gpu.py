"""The Triton kernels on a GPU: against float64, by the rule of test_attention.py, and as PyTorch sees them."""

from itertools import product

import pytest
import torch

from cs336_systems.attention import chip, flash_attention, gpu_attention, plain_attention
from tests.attention.test_attention import excess, flash_results, function_results, make_inputs, plain_results

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
CASES = [
    pytest.param(shape, dtype, causal, id=f"{shape} {str(dtype)[6:]} {'causal' if causal else 'full'}", marks=marks)
    for marks, lines in ((pytest.mark.numeric, CORE), ((), MORE))
    for shape, dtypes, causal in lines
    for dtype in dtypes
]


@pytest.fixture(autouse=True)
def full_precision_reference():
    assert torch.backends.cuda.matmul.allow_tf32 is False, "the fp32 reference would be in TF32"


@pytest.fixture
def functions():
    return pytest.importorskip("cs336_systems.attention.triton_attention", exc_type=ImportError)


@pytest.mark.parametrize(("shape", "dtype", "is_causal"), CASES)
def test_error_is_at_most_twice_that_of_pytorch(functions, shape, dtype, is_causal):
    batch, heads, n_queries, n_keys, d = shape
    inputs = make_inputs((batch, heads, n_queries, d), n_keys, dtype, "cuda")
    assert not excess(function_results(functions.TritonFlashAttention, inputs, is_causal), inputs, is_causal)


@pytest.mark.parametrize("table", ["KB_99", "KB_163"])
@pytest.mark.parametrize("d", [64, 100, 256])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_tiles_of_other_chips(dtype, d, table):
    from cs336_systems.attention import tile_config, triton_launch

    inputs = make_inputs((1, 2, 333, d), 300, dtype, "cuda")
    width = max(64, 1 << (d - 1).bit_length())
    forward, backward = getattr(tile_config, table)[dtype is FP32, width]
    o, lse = triton_launch.attention_forward(*inputs[:3], True, tiles=forward)
    gradients = triton_launch.attention_backward(inputs[3], *inputs[:3], o, lse, True, tiles=backward)
    got = dict(zip(("o", "lse", "dq", "dk", "dv"), (o, lse, *gradients), strict=True))
    assert not excess(got, inputs, True)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_gpus_before_ampere_run_sdpa_or_tiles(monkeypatch, request, dtype, is_causal):
    """With grouped queries; compiled; and tiled PyTorch where L is asked for."""
    request.addfinalizer(gpu_attention._kernels.cache_clear)
    for module in (chip, gpu_attention):
        monkeypatch.setattr(module, "triton_obstacle", lambda chip: "as on a T4")
    gpu_attention._kernels.cache_clear()
    inputs = make_inputs((2, 4, 130, 17), 50, dtype, "cuda", kv_heads=2)
    for attention in (flash_attention, torch.compile(flash_attention, fullgraph=True)):
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        o = attention(*leaves, is_causal, enable_gqa=True)
        gradients = torch.autograd.grad(o, leaves, inputs[3])
        got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
        assert not excess(got, inputs, is_causal)
    options = {"scale": 0.3, "grad_lse": torch.randn(inputs[0].shape[:-1], device="cuda")}
    assert not excess(flash_results(inputs, is_causal, **options), inputs, is_causal, **options)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("n", [333, 2049])
def test_large_scores(functions, n, dtype):
    """Scores of some hundreds, which only a running maximum survives."""
    inputs = make_inputs((16, n, 64), n, dtype, "cuda", scale=6.0)
    got = function_results(functions.TritonFlashAttention, inputs, True)
    assert not excess(got, inputs, True, large_scores=True)


@pytest.mark.numeric
@pytest.mark.parametrize("n", [70, 1100])
def test_strided_inputs_and_a_gradient_of_stride_zero(n):
    """Heads out of one projection, as models have them, and the gradient of o.sum()."""
    x = torch.randn(4, n, 3, 6, 64, device="cuda", dtype=BF16, requires_grad=True)
    q, k, v = (t.transpose(1, 2) for t in x.unbind(2))
    o = flash_attention(q, k, v, True)
    assert o.transpose(1, 2).is_contiguous(), "the output comes in the layout of q"
    (grad,) = torch.autograd.grad(o.sum(), x)
    copies = [t.detach().contiguous() for t in (q, k, v)]
    ones = torch.ones_like(copies[0])
    results = dict(zip(("dq", "dk", "dv"), (t.transpose(1, 2) for t in grad.unbind(2)), strict=True))
    assert not excess({"o": o.detach()} | results, [*copies, ones], True)


@pytest.mark.parametrize("n", [300, 2200])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_the_same_bits_every_time(dtype, n, request):
    torch.use_deterministic_algorithms(True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    q, k, v, grad_o = make_inputs((16, n, 64), n, dtype, "cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def results():
        o = flash_attention(*leaves, True)
        return o, *torch.autograd.grad(o, leaves, grad_o)

    first = results()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, results(), strict=True))


@pytest.mark.parametrize("n", [200, 1500])
def test_compiled_in_one_graph(n):
    inputs = make_inputs((4, 4, n, 64), n, BF16, "cuda")
    leaves = [x.requires_grad_() for x in inputs[:3]]
    o = torch.compile(flash_attention, fullgraph=True)(*leaves, True)
    gradients = torch.autograd.grad(o, leaves, inputs[3])
    got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
    assert not excess(got, [x.detach() for x in inputs], True)


def test_compiled_function_with_the_loss_of_a_sum(functions):
    """As the leaderboard runs it: torch.compile of apply, then o.sum().backward()."""
    q, k, v, _ = make_inputs((16, 2048, 64), 2048, BF16, "cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.compile(functions.TritonFlashAttention.apply)(*leaves, True).sum().backward()
    inputs = [*(x.detach() for x in leaves), torch.ones_like(q)]
    got = dict(zip(("dq", "dk", "dv"), (x.grad for x in leaves), strict=True))
    assert not excess(got, inputs, True)


@pytest.mark.parametrize("device_type", ["cuda"])
def test_autocast(device_type):
    inputs = make_inputs((2, 3, 100, 64), 100, FP32, device_type)
    leaves = [x.requires_grad_() for x in inputs[:3]]
    for function in (flash_attention, torch.compile(flash_attention, fullgraph=True)):
        with torch.autocast(device_type, BF16):
            o = function(*leaves, True)
        assert o.dtype == BF16
        gradients = torch.autograd.grad(o, leaves, inputs[3].to(o.dtype))
        assert all(x.dtype == FP32 for x in gradients)
        want = plain_results([x.detach().bfloat16() for x in inputs], True, torch.float64)["dq"]
        torch.testing.assert_close(gradients[0].double(), want, rtol=0.05, atol=0.05)


def test_checkpointing():
    q, k, v, grad_o = make_inputs((2, 3, 300, 64), 300, BF16, "cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = torch.utils.checkpoint.checkpoint(flash_attention, *leaves, True, use_reentrant=False)
    got = torch.autograd.grad(o, leaves, grad_o)
    want = torch.autograd.grad(flash_attention(*leaves, True), leaves, grad_o)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("shape", "dtype"), list(product([(2, 100, 64), (2, 3, 100, 16)], [BF16, FP32])))
def test_operators_keep_their_contract(functions, shape, dtype):
    q, k, v, grad_o = make_inputs(shape, 70, dtype, "cuda")
    o, lse = torch.ops.cs336_systems.flash_forward(q, k, v, True)
    torch.library.opcheck(torch.ops.cs336_systems.flash_forward, (q, k, v, True))
    torch.library.opcheck(torch.ops.cs336_systems.flash_backward, (grad_o, q, k, v, o, lse, True))


# q's shape and number of keys, with 2 heads of keys: tiles without preprocess, with it, with descriptors.
GROUPED = [((2, 4, 300, 64), 333), ((1, 6, 1001, 128), 1100), ((4, 4, 2049, 64), 2049), ((1, 4, 150, 256), 100)]


@pytest.mark.numeric
@pytest.mark.parametrize("shape_and_keys", GROUPED, ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_shared_heads_of_keys(shape_and_keys, dtype):
    """Without L, as models call it, eager and compiled, and with it."""
    shape, n_keys = shape_and_keys
    inputs = make_inputs(shape, n_keys, dtype, "cuda", kv_heads=2)
    for function in (flash_attention, torch.compile(flash_attention, fullgraph=True, backend="aot_eager")):
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        o = function(*leaves, True, scale=0.2, enable_gqa=True)
        gradients = torch.autograd.grad(o, leaves, inputs[3])
        got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients), strict=True))
        assert not excess(got, inputs, True, scale=0.2)
    grad_lse = torch.randn(shape[:-1], device="cuda")
    assert not excess(flash_results(inputs, True, 0.2, grad_lse), inputs, True, scale=0.2, grad_lse=grad_lse)


def test_shared_heads_of_keys_are_not_repeated():
    """Heads of keys 32 times as few as those of q: repeating them would take as much as q does, three times."""
    q = torch.randn(1, 32, 8192, 64, device="cuda", dtype=BF16)
    k, v = torch.randn(2, 1, 1, 8192, 64, device="cuda", dtype=BF16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    flash_attention(q, k, v, True, enable_gqa=True)
    assert torch.cuda.max_memory_allocated() - before < 1.5 * q.nbytes  # the output and L


@pytest.mark.numeric
@pytest.mark.parametrize("is_causal", [False, True])
def test_compiled_backward(functions, is_causal):
    """The second way backward: Triton forward, compiled PyTorch backward."""
    inputs = make_inputs((4, 300, 64), 300, FP32, "cuda")
    assert not excess(function_results(functions.TritonForwardCompiledBackward, inputs, is_causal), inputs, is_causal)
    inputs = [x.bfloat16() for x in inputs]
    assert not excess(function_results(functions.TritonForwardCompiledBackward, inputs, is_causal), inputs, is_causal)


def test_memory_is_linear():
    """65536 queries, whose score matrix alone would take 8 GiB in bf16."""
    torch.cuda.empty_cache()
    q, k, v, grad_o = (torch.randn(1, 65536, 64, device="cuda", dtype=BF16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(flash_attention(*leaves, True), leaves, grad_o)
    assert torch.cuda.max_memory_allocated() - before < 16 * q.numel() * q.element_size()


def test_mixed_devices():
    x = torch.zeros(2, 4, 16, device="cuda")
    with pytest.raises(ValueError, match="k on cpu"):
        flash_attention(x, x.cpu(), x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_on_a_device_that_is_not_the_current_one():
    inputs = make_inputs((2, 100, 64), 100, BF16, "cuda:1")
    assert torch.cuda.current_device() == 0
    assert not excess(flash_results(inputs, True), inputs, True)


def test_the_second_shape_does_not_reuse_the_first_kernel():
    """Compiled kernels are remembered by what they were specialized on: alignment, and numbers equal to one."""
    storage = torch.randn(4 * 65 * 64 + 8, device="cuda", dtype=BF16)
    for offset, batch, n in ((0, 4, 64), (1, 4, 64), (0, 1, 65), (3, 1, 65), (8, 4, 64)):
        x = storage[offset : offset + batch * n * 64].view(batch, n, 64)
        torch.testing.assert_close(flash_attention(x, x, x, True), plain_attention(x, x, x, True), rtol=0.03, atol=0.03)


def test_dtypes_do_not_share_a_kernel():
    inputs = make_inputs((16, 1, 1100, 64), 1100, FP32, "cuda")
    for dtype in (BF16, FP16, BF16):
        q, k, v, grad_o = (x.to(dtype) for x in inputs)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        for _ in range(2):
            o = flash_attention(*leaves, True)
            got = dict(zip(("o", "dq"), (o.detach(), torch.autograd.grad(o, leaves[0], grad_o)[0]), strict=True))
            assert not excess(got, [q, k, v, grad_o], True)
