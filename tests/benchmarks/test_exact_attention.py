"""The reference that attention is compared with before it is timed, and wrong attention that it notices."""

import math
import subprocess
import sys
from contextlib import nullcontext
from itertools import product

import pytest
import torch

from cs336_systems.attention import TiledFlashAttention, plain_attention
from cs336_systems.benchmarks import attention, flash
from cs336_systems.benchmarks.comparison import exact_attention
from cs336_systems.benchmarks.comparison.exact_attention import require_attention
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.memory import Unavailable
from tests.support.interpreter import interpreter_environment

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_in_float64_is_that_of_autograd(is_causal, monkeypatch):
    monkeypatch.setattr(exact_attention, "SCORES", 10 * 77)  # ten rows at a time
    inputs = [torch.randn(2, 3, 77, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    o, grad_o = plain_attention(*inputs, is_causal), torch.randn(2, 3, 77, 5, dtype=torch.float64)
    expected = (o, *torch.autograd.grad(o, inputs, grad_o))
    results = exact_attention.exact_attention(*inputs, grad_o, is_causal=is_causal)
    for mine, right in zip(results, expected, strict=True):
        assert mine.shape == right.shape
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def causal(q, k, v):
    return plain_attention(q, k, v, is_causal=True)


def masked(q, k, v, hidden):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden(torch.arange(q.shape[-2])), -torch.inf)
    return scores.softmax(-1) @ v


def zeroed(o, rows):
    return torch.cat((o[..., :-rows, :], torch.zeros_like(o[..., -rows:, :])), -2)


WRONG = {
    "not causal": plain_attention,
    "half the scale": lambda q, k, v: causal(q / 2, k, v),
    "scores that are not scaled": lambda q, k, v: causal(q * math.sqrt(q.shape[-1]), k, v),
    "each query sees the next key": lambda *x: masked(*x, lambda i: i > i[:, None] + 1),
    "queries see no recent key": lambda *x: masked(*x, lambda i: (i > i[:, None] - 2) & (i > 0)),
    "the last tile left out": lambda *x: zeroed(causal(*x), 30),
    "a gradient left out": lambda q, k, v: causal(q, k, v.detach() + 0 * v),
    "one head for all": lambda q, k, v: causal(q, k[:, :1].expand_as(k), v),
    "not a number": lambda q, k, v: causal(q, k, v * torch.nan),
}
ALSO_WRONG = {
    "products in bf16": lambda *x: causal(*(each.bfloat16() for each in x)).float(),
    "products in TF32": lambda *x: causal(*map(tf32, x)),
    "results in bf16": lambda *x: causal(*x).bfloat16(),
}
"""In fp32."""


def tf32(x):
    """Ten bits of the mantissa; the gradient as it is."""
    rounded = ((x.detach().view(torch.int32) + 2**12) & ~(2**13 - 1)).view(torch.float32)
    return x + (rounded - x.detach())


def inputs(dtype):
    torch.manual_seed(7)
    return [torch.randn(1, 2, 150, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("wrong", [*WRONG, *ALSO_WRONG])
def test_what_is_not_causal_attention_is_not_timed(wrong):
    dtypes = (torch.float32, torch.bfloat16) if wrong in WRONG else (torch.float32,)
    for dtype in dtypes:
        call = (WRONG | ALSO_WRONG)[wrong]
        with pytest.raises(AssertionError, match=r"^its (output|dq|dk|dv) (has a relative error of|is) "):
            require_attention(call, inputs(dtype), is_causal=True)
        with pytest.raises(Unavailable, match=r"^not timed: its (output|dq|dk|dv) (has a relative error of|is) "):
            require_attention(call, inputs(dtype), is_causal=True, foreign=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounds_as_its_dtype_does_is_timed(dtype):
    for call in (causal, lambda *x: TiledFlashAttention.apply(*x, True)):
        require_attention(call, inputs(dtype), is_causal=True)
    require_attention(plain_attention, inputs(dtype), is_causal=False)
    with pytest.raises(
        AssertionError, match=r"^its output has a relative error of \S+ \(tolerance \S+\) against attention"
    ):
        require_attention(causal, inputs(dtype), is_causal=False)


@pytest.mark.parametrize(("implementation", "error"), [("plain", AssertionError), ("sdpa_flash", Unavailable)])
def test_a_wrong_implementation_has_no_times(implementation, error, monkeypatch):
    monkeypatch.setattr(flash, "build", lambda cell: plain_attention)
    with pytest.raises(error, match="against causal attention"):
        flash.measure(Flash(sequence=40, d=16, implementation=implementation), CPU)


def test_what_the_timed_passes_make_is_compared(monkeypatch):
    calls = iter([*2 * [plain_attention], *3 * [causal]])
    monkeypatch.setattr(attention, "plain_attention", lambda *inputs: next(calls)(*inputs))
    with pytest.raises(AssertionError, match="against attention"):
        attention.measure(Attention(sequence=16, d=8, batch_size=2, warmup=2, steps=3), CPU)


def test_some_heads_are_compared_and_named():
    q, k, v = (x.detach() for x in inputs(torch.float32))
    right = exact_attention.exact_attention(q, k, v, q, is_causal=True)[0].float()
    wrong = {"output": right * torch.tensor([1.0, 2.0])[:, None, None]}
    exact_attention.require_close(wrong, [q, k, v, q], is_causal=True, heads=[0])
    with pytest.raises(
        AssertionError, match=r"error of 0\.9\d \(tolerance \S+\) against causal attention, largest in head 1, "
    ):
        exact_attention.require_close(wrong, [q, k, v, q], is_causal=True, heads=[1, 0])


def check_examples(device, dtypes):
    """Compare the examples' kernels with float64, at lengths that tiles divide or do not."""
    from examples.my_systems.triton_attention import TritonFlashAttention, UnmaskedFlashAttention

    for function, length, is_causal, dtype in product(
        (TritonFlashAttention, UnmaskedFlashAttention), (128, 100), (True, False), dtypes
    ):
        inputs = [torch.randn(2, length, 24, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
        wrong = function is UnmaskedFlashAttention and length == 100 and not is_causal
        with pytest.raises(Unavailable, match="its output has a relative error") if wrong else nullcontext():
            require_attention(lambda *x: function.apply(*x, is_causal), inputs, is_causal=is_causal, foreign=True)  # noqa: B023


@pytest.mark.gpu
def test_the_examples_kernels_on_a_gpu():
    check_examples("cuda", (torch.float32, torch.bfloat16))


def test_the_examples_kernels_interpreted():
    # The interpreter multiplies no bf16.
    code = "from tests.benchmarks.test_exact_attention import *; check_examples('cpu', (torch.float32,))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=interpreter_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
