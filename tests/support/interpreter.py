"""Triton's interpreter, which must be chosen before kernels are defined: in a process of its own."""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]


def interpreter_environment() -> dict[str, str]:
    """Environment of a process whose kernels are interpreted; skips the test where the interpreter does not run."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < (3, 7) and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        pytest.skip(f"the interpreter of Triton {triton.__version__} fails with NumPy {numpy.__version__}")
    return os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
