"""Rounding of a matrix to FP8 in Triton, by rows and by columns, and the history of largest elements.

Under current scaling a pass finds the largest element before another one rounds. Under delayed scaling the scale is
computed from the last step's largest element, and one pass rounds and finds the next one.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cs336_systems.attention.launcher import CACHE_SIZE, Launch, cdiv, on_device
from cs336_systems.training import tiles
from cs336_systems.training.fp8_formats import HEADROOM, SMALLEST_AMAX
from cs336_systems.training.tiles import Tile
from cs336_systems.training.triton_swiglu import locate

PARTS = 512
"""Number of programs; each finds the largest element of a part of a matrix."""
AMAX_BLOCK = 4096
TILE = Tile(64, 64, 8)
"""The tile that a program rounds."""
INPUT, WEIGHT, GRADIENT = range(3)
"""A layer's operands in its history."""
SLOTS = 4
"""Number of operands in a history's memory, a power of two."""


class Amax(NamedTuple):
    """Where the largest absolute value for a tensor's scale is read, and where the new one is written."""

    last: Tensor | None = None
    """One fp32 number: the last step's; None: a separate pass finds it."""
    next: Tensor | None = None
    """One fp32 number, which is raised to the new value."""


CURRENT = Amax()


@triton.jit
def amax_kernel(
    x,  # pointer, [n]
    amax,  # pointer, [programs] fp32, out
    n,
    BLOCK: tl.constexpr,
):
    """Find the largest absolute value of every programs-th block."""
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offset = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.abs(tl.load(x + offset, mask=offset < n, other=0.0).to(tl.float32)))
    tl.store(amax + tl.program_id(0), tl.max(largest, 0))


@triton.jit
def round_kernel(
    x,  # pointer, [rows, D]
    amax,  # pointer, [PARTS] fp32
    by_row,  # pointer, [rows, D] FP8, out
    by_column,  # pointer, [D, rows] FP8, out
    scale,  # pointer, one fp32 number, out
    next_amax,  # pointer, one fp32 number, which is raised
    rows,
    limit,  # the largest number of the format
    smallest,  # the smallest amax
    headroom,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    TRANSPOSED: tl.constexpr,  # whether by_column is written
    COLLECT: tl.constexpr,  # whether next_amax is
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LAST_FIRST: tl.constexpr,
):
    """Round one tile of the matrix; the grid is (row tiles x column tiles)."""
    row, column, mask = locate(rows, D, BLOCK_ROWS, BLOCK_D, LAST_FIRST)
    tile = tl.load(x + (row * D + column), mask, other=0.0).to(tl.float32)
    if COLLECT:
        raise_to(next_amax, tile)
    rounded = to_fp8(tile, factor_of(amax, scale, limit, smallest, headroom, PARTS), limit, by_row.dtype.element_ty)
    tl.store(by_row + (row * D + column), rounded, mask)
    if TRANSPOSED:
        tl.store(by_column + (column.to(tl.int64) * rows + row), rounded, mask)


@triton.jit
def advance_kernel(
    history,  # pointer, [N, 2, 4] fp32: the largest element of the last step, and of this one so far
    N: tl.constexpr,
):
    """Begin a step: finite positive values of this step become the last step's."""
    last = history + 8 * tl.arange(0, N)
    seen = tl.load(last + 4)
    tl.store(last, seen, (seen > 0.0) & (seen < float("inf")))
    tl.store(last + 4, tl.zeros([N], tl.float32))


@triton.jit
def factor_of(amax, scale, limit, smallest, headroom, PARTS: tl.constexpr):
    """Compute the factor for the numbers; the first program stores its inverse.

    If all numbers were zero, as in a layer that starts with zeros, the scale is the one for 1.
    """
    largest = tl.max(tl.load(amax + tl.arange(0, PARTS)), 0)
    largest = tl.where(largest > 0.0, tl.maximum(largest * headroom, smallest), 1.0)
    if tl.program_id(0) == 0:
        tl.store(scale, tl.div_rn(largest, limit))
    return tl.div_rn(limit, largest)  # a division per element would take longer than reading and writing it


@triton.jit
def to_fp8(x, factor, limit, dtype):
    """Scale a tile and round it."""
    return tl.clamp(x * factor, -limit, limit, propagate_nan=tl.PropagateNan.ALL).to(dtype)


@triton.jit
def raise_to(amax, x):
    """Raise a number to the largest absolute value of a tile."""
    tl.atomic_max(amax, tl.max(tl.max(tl.abs(x), 1), 0), sem="relaxed")


class AmaxHistory:
    """The largest elements of a layer's operands: in the last step, and in this one so far."""

    def __init__(self, device: torch.device):
        """Begin without any, so that the first step uses current scaling."""
        self.device = device
        self._memory = torch.zeros(SLOTS, 2, 4, device=device)  # each number at a multiple of 16 bytes
        self._numbers = [(last[0], seen[0]) for last, seen in self._memory]
        self._seen: set[int] = set()
        self._known: frozenset[int] = frozenset()

    def advance(self) -> None:
        """Begin a step."""
        if self._seen:
            _advance_launch()(self._memory)
            self._known = frozenset(self._seen)

    def __getitem__(self, operand: int) -> Amax:
        """Where the amax of the operand to round next is read and written."""
        last, seen = self._numbers[operand]
        self._seen.add(operand)
        return Amax(last if operand in self._known else None, seen)


@on_device
def round_matrix(
    x: Tensor, dtype: torch.dtype, transposed: bool, amax: Amax = CURRENT
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Round a contiguous matrix, [rows, columns], multiples of 16, to FP8 with one scale.

    Returns:
        [rows, columns] in FP8, its transpose [columns, rows], contiguous, or None, and the factor that restores them,
        one fp32 number.
    """
    rows, columns = x.shape
    last, seen = amax
    headroom = HEADROOM
    if last is None:
        last, headroom = torch.empty(PARTS, dtype=torch.float32, device=x.device), 1.0
        _amax_launch(x.numel(), x.dtype)(x, last)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    by_row = torch.empty_like(x, dtype=dtype)
    by_column = torch.empty(columns, rows, dtype=dtype, device=x.device) if transposed else None
    launch = _round_launch(x.shape, x.dtype, dtype, last.numel(), headroom, transposed, seen is not None)
    launch(x, last, by_row, by_row if by_column is None else by_column, scale, scale if seen is None else seen)
    return by_row, by_column, scale


@lru_cache(CACHE_SIZE)
def _amax_launch(n: int, dtype: torch.dtype) -> Launch:
    return Launch(amax_kernel, (PARTS, 1, 1), (n,), (AMAX_BLOCK,), num_warps=8)


@lru_cache(CACHE_SIZE)
def _round_launch(
    shape: torch.Size,
    dtype: torch.dtype,
    rounded: torch.dtype,
    parts: int,
    headroom: float,
    transposed: bool,
    collect: bool,
) -> Launch:
    rows, columns = shape
    return Launch(
        round_kernel,
        (cdiv(rows, TILE.rows) * cdiv(columns, TILE.columns), 1, 1),
        (rows, torch.finfo(rounded).max, SMALLEST_AMAX, headroom),
        (columns, parts, transposed, collect, TILE.rows, TILE.columns, tiles.LAST_FIRST),
        num_warps=TILE.num_warps,
    )


@lru_cache(CACHE_SIZE)
def _advance_launch() -> Launch:
    return Launch(advance_kernel, (1, 1, 1), (), (SLOTS,), num_warps=1)
