"""The examples' Triton kernels: right, and right only where tiles divide the sequence."""

import subprocess
import sys
from contextlib import nullcontext
from itertools import product

import pytest
import torch

from cs336_systems.benchmarks.comparison.exact_attention import require_attention
from cs336_systems.measure.memory import Unavailable
from tests.support.interpreter import interpreter_environment

MASKS = (True, False)


def check(device, dtypes):
    """Compare both with float64, at lengths that tiles divide or do not."""
    from examples.my_systems.triton_attention import TritonFlashAttention, UnmaskedFlashAttention

    for function, length, is_causal, dtype in product(
        (TritonFlashAttention, UnmaskedFlashAttention), (128, 100), MASKS, dtypes
    ):
        inputs = [torch.randn(2, length, 24, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
        wrong = function is UnmaskedFlashAttention and length == 100 and not is_causal
        with pytest.raises(Unavailable, match="its output has a relative error") if wrong else nullcontext():
            require_attention(lambda *x: function.apply(*x, is_causal), inputs, is_causal=is_causal, foreign=True)  # noqa: B023


@pytest.mark.gpu
def test_the_examples_kernels_on_a_gpu():
    check("cuda", (torch.float32, torch.bfloat16))


def test_the_examples_kernels_interpreted():
    # The interpreter multiplies no bf16.
    code = "from tests.benchmarks.test_triton_example import *; check('cpu', (torch.float32,))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=interpreter_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
