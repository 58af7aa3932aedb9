"""Attention on a CPU: tiled PyTorch, the function for users, and the Triton kernels through Triton's interpreter.

An implementation passes where its error against float64 is at most twice that of plain PyTorch in the same precision:
it may round where PyTorch rounds, in another order, and no more.
"""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from cs336_systems.attention import TiledFlashAttention, flash_attention, plain_attention

NAMES = ("o", "lse", "dq", "dk", "dv")

# n_queries, n_keys: powers of two, odd, unequal both ways, one query, one key
LENGTHS = [(128, 128), (77, 77), (50, 130), (130, 50), (1, 65), (65, 1)]


def make_inputs(shape, n_keys, dtype, device="cpu", scale=1.0) -> list[Tensor]:
    """Random q, k, v and gradient of the output; q is [*shape], the last two axes being n_queries and d."""
    generator = torch.Generator().manual_seed(0)
    key_shape = (*shape[:-2], n_keys, shape[-1])
    shapes = (shape, key_shape, key_shape, shape)
    q, k, v, grad_o = (torch.randn(s, generator=generator).to(device, dtype) for s in shapes)
    return [q * scale, k * scale, v, grad_o]


def plain_results(inputs: list[Tensor], is_causal: bool, dtype=None) -> dict[str, Tensor]:
    """Output, L and gradients by autograd through the textbook formula, in the inputs' dtype or another."""
    q, k, v, grad_o = (x.detach().to(dtype or x.dtype) for x in inputs)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = plain_attention(*leaves, is_causal)
    scores = (q @ k.transpose(-2, -1)).detach() / math.sqrt(q.shape[-1])
    if is_causal:
        hidden = torch.arange(k.shape[-2], device=q.device) > torch.arange(q.shape[-2], device=q.device)[:, None]
        scores = scores.masked_fill(hidden, -torch.inf)
    return dict(zip(NAMES, (o.detach(), scores.logsumexp(-1), *torch.autograd.grad(o, leaves, grad_o)), strict=True))


def function_results(function, inputs: list[Tensor], is_causal: bool) -> dict[str, Tensor]:
    """The same from an autograd.Function, with L as it was saved for backward."""
    q, k, v, grad_o = inputs
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = function.apply(*leaves, is_causal)
    saved = [x for x in o.grad_fn.saved_tensors if x.shape == q.shape[:-1]]
    assert len(saved) == 1, "exactly one saved tensor has the shape of L"
    return dict(zip(NAMES, (o.detach(), saved[0], *torch.autograd.grad(o, leaves, grad_o)), strict=True))


def error(got: Tensor, want: Tensor) -> float:
    """Absolute error, ‖got - want‖."""
    return (got.double() - want.double()).norm().item()


def excess(got: dict[str, Tensor], inputs: list[Tensor], is_causal: bool, large_scores: bool = False) -> dict[str, str]:
    """The results whose error is more than twice PyTorch's; empty if all is well.

    A floor of two roundings of the result allows for PyTorch being exact by luck. With one query or one key it is four
    roundings of a number of order one, an element and a term: there dQ and dK are zero, or nearly, as sums of
    differences of such numbers, and what is left is their rounding. With large scores the gradients may also be off by
    the rounding of L, which any backward pass inherits that starts from L: PyTorch's starts from the saved softmax.
    """
    want = plain_results(inputs, is_causal, torch.float64)
    plain = plain_results(inputs, is_causal)
    lengths = inputs[0].shape[-2], inputs[1].shape[-2]
    cancels = max(lengths) ** 0.5 if min(lengths) == 1 else 0.0
    bad = {}
    for name, value in got.items():
        eps = torch.finfo(value.dtype).eps
        floor = max(2 * eps * want[name].norm().item(), 4 * eps * value.numel() ** 0.5 * cancels)
        if large_scores and name.startswith("d"):
            floor += want["lse"].abs().max().item() * torch.finfo(torch.float32).eps * want[name].norm().item()
        allowed = 2 * error(plain[name], want[name]) + floor
        actual = error(value, want[name])
        if not actual <= allowed:  # also catches NaN
            bad[name] = f"{actual:.2e} > {allowed:.2e}"
    return bad


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


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8), (0, 5, 8), (2, 0, 8)])
def test_any_leading_axes(shape):
    q, k, v, _ = make_inputs(shape, 7, torch.float32)
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


def test_autocast_casts():
    q, k, v, _ = make_inputs((2, 9, 16), 9, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o = flash_attention(q, k, v)
    assert o.dtype == torch.bfloat16


def test_checkpointing_recomputes_the_same():
    q, k, v, grad_o = make_inputs((2, 70, 16), 70, torch.float32)
    q.requires_grad_()
    o = torch.utils.checkpoint.checkpoint(flash_attention, q, k, v, True, use_reentrant=False)
    (grad,) = torch.autograd.grad(o, q, grad_o)
    (want,) = torch.autograd.grad(flash_attention(q, k, v, True), q, grad_o)
    assert torch.equal(grad, want)


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
    ],
)
def test_a_mistake_gets_one_sentence_with_the_value(change, message):
    arguments = {name: torch.zeros(2, 4, 8) for name in "qkv"} | change
    with pytest.raises(ValueError, match=message) as raised:
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
    from cs336_systems.attention.tile_config import backward_tiles, forward_tiles
    from tests.test_attention_gpu import CASES

    widths, lengths = (16, 32, 64, 128, 256), [2**n + 1 for n in range(18)]
    for table in (forward_tiles, backward_tiles):
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


def run_interpreted() -> None:
    """Print one JSON object: for each case the results in excess of PyTorch's error."""
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
    for case, (shape, n_keys, dtype, is_causal) in INTERPRETED.items():
        inputs = make_inputs(shape, n_keys, dtype, scale=8.0 if case == "large scores" else 1.0)
        if case.startswith("strided"):
            inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]]
            inputs.append(torch.ones(()).expand(shape))  # the gradient of a sum
        triton_launch.default_tiles = many_queries.get(case.partition(",")[0], default)
        got = function_results(TritonFlashAttention, inputs, is_causal)
        report[case] = excess(got, inputs, is_causal, large_scores=case == "large scores")
    print(json.dumps(report))


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, str]]:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < (3, 7) and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        pytest.skip(f"the interpreter of Triton {triton.__version__} fails with NumPy {numpy.__version__}")
    root = Path(__file__).parents[1]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", INTERPRETED)
def test_kernels_interpreted(interpreted, case):
    assert not interpreted[case]


if __name__ == "__main__":
    run_interpreted()
