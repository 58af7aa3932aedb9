"""Matmuls at the shapes of the models, by precision."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from cs336_systems.benchmarks.instruments.work import Call, Work, WrongResults
from cs336_systems.measure.memory import Unavailable
from cs336_systems.nvidia import compute_capability
from cs336_systems.training.fp8_formats import CAPABILITY

Multiply = Callable[[Tensor, Tensor], Callable[[], Tensor]]
"""A function from fp32 matrices a and b to a function that computes a @ b.T in some precision."""
SHAPES = {
    # Tokens, d_in and d_out of the first feed-forward matmul of small and of 2.7B, and a large square.
    "cuda": ((4096, 768, 3072), (4096, 2560, 10240), (8192, 8192, 8192)),
    "cpu": ((512, 256, 1024), (1024, 1024, 1024)),
}
ON = {"cuda": ("bf16", "fp16", "TF32", "fp32", "FP8"), "cpu": ("bf16", "fp32")}
SUSTAINED = 8
"""Factor by which the largest bf16 matmul runs longer, so that temperature and power settle."""
ROWS = 64
"""Number of rows of each result that are compared with float64."""


def works(device: torch.device) -> Iterator[Work]:
    """Each precision at each shape; last and longest, the one that draws the most power."""
    sustained = ("bf16", SHAPES[device.type][-1])
    pairs = [(precision, shape) for precision in ON[device.type] for shape in SHAPES[device.type]]
    pairs.sort(key=lambda pair: pair == sustained)
    for precision, (rows, inner, columns) in pairs:
        yield Work(
            name=f"{precision} {rows} x {inner} x {columns}",
            metric="rate",
            amount=2e-12 * rows * inner * columns,
            build=partial(build, (rows, inner, columns), precision),
            times=SUSTAINED if (precision, (rows, inner, columns)) == sustained else 1,
        )


def build(shape: tuple[int, int, int], precision: str, device: torch.device) -> Call:
    """Draw random normal numbers, multiply them once, compare with float64, and return the multiplication."""
    dtype, prepare, tolerance = PRECISIONS[precision]
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner, device=device), torch.randn(columns, inner, device=device)
    multiply = prepare(a, b)
    chosen = torch.arange(0, rows, max(1, rows // ROWS), device=device)
    exact = a[chosen].to(dtype).double() @ b.to(dtype).double().T
    off = (multiply()[chosen].double() - exact).abs() / exact.abs().max()
    if wrong := int((~(off <= tolerance)).sum()):
        raise WrongResults(wrong, f"{wrong} of {off.numel()} elements differ from float64, by up to {off.max():.2g}")
    return multiply


def plain(dtype: torch.dtype) -> Multiply:
    """Matmuls of one dtype."""

    def prepare(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
        a, b = a.to(dtype), b.to(dtype)
        result = a.new_empty(len(a), len(b))
        return lambda: torch.mm(a, b.T, out=result)

    return prepare


def tf32(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """fp32 matmuls whose inputs are rounded to TF32."""
    if compute_capability(a.device) < (8, 0):
        raise Unavailable("TF32 needs an NVIDIA GPU of compute capability 8.0")
    result = a.new_empty(len(a), len(b))

    def multiply() -> Tensor:
        torch.set_float32_matmul_precision("high")
        try:
            return torch.mm(a, b.T, out=result)
        finally:
            torch.set_float32_matmul_precision("highest")

    return multiply


def fp8(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Matmuls of FP8 (e4m3) numbers with a scale for each tensor, to bf16."""
    if compute_capability(a.device) < CAPABILITY:
        raise Unavailable(f"FP8 matmuls need an NVIDIA GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]}")
    scale = torch.ones((), device=a.device)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    return lambda: torch._scaled_mm(a, b.T, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


PRECISIONS: dict[str, tuple[torch.dtype, Multiply, float]] = {
    "bf16": (torch.bfloat16, plain(torch.bfloat16), 2.0**-7),
    "fp16": (torch.float16, plain(torch.float16), 2.0**-9),
    "TF32": (torch.float32, tf32, 2.0**-9),
    "fp32": (torch.float32, plain(torch.float32), 2.0**-16),
    "FP8": (torch.float8_e4m3fn, fp8, 2.0**-7),
}
"""The dtype of a matmul's inputs, its constructor, and the allowed error of a result relative to the largest: its
rounding, or the rounding of fp32 or TF32 terms."""
