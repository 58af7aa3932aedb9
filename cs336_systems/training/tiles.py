"""Tiles of [rows, columns] that programs of memory-bound kernels work on."""

from typing import NamedTuple

LAST_FIRST = True
"""Start with the last tiles: the previous matmul wrote them last, so they are still in the L2 cache."""
THREADS_PER_WARP = 32
MAX_WARPS = 16
PART_WIDTHS = (1024, 512, 256)
"""Widths of parts of rows; with fewer than 256 elements of 2 bytes, a warp would access two rows at once."""
MAX_OVERHANG = 0.05
"""Fraction of a row's width by which its last tile may extend beyond its end."""


class Tile(NamedTuple):
    """Shape of a tile, powers of two, and the warps that share it."""

    rows: int
    columns: int
    num_warps: int


def row_tile(width: int, size: int, per_thread: int) -> Tile:
    """Choose a tile of whole rows with at least `size` elements; its warps process `per_thread` per thread."""
    columns = 1 << (width - 1).bit_length()
    rows = max(1, size // columns)
    return Tile(rows, columns, _num_warps(rows * columns, per_thread))


def part_tile(width: int, size: int, per_thread: int) -> Tile:
    """Choose a tile of `size` elements in parts of rows, as wide as possible without much overhang at their ends."""
    whole = 1 << (width - 1).bit_length()
    widths = [columns for columns in PART_WIDTHS if columns <= whole]
    columns = next((c for c in widths if -width % c <= MAX_OVERHANG * width), min([whole, *widths]))
    return Tile(size // columns, columns, _num_warps(size, per_thread))


def _num_warps(size: int, per_thread: int) -> int:
    return min(MAX_WARPS, size // (THREADS_PER_WARP * per_thread))
