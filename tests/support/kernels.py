"""Kernels for tests of what a compiler reports."""

import triton
import triton.language as tl


@triton.jit
def impossible(x):
    tl.static_assert(False, "3 rows are no tile")
