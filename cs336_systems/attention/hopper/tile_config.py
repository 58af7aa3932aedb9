"""Tile sizes of the Hopper kernels for each problem, chosen by timing on an H200 (docs/hopper-kernels.md)."""

from dataclasses import dataclass

L2_SHARE = 32 * 2**20  # bytes of the 50 MiB L2 cache for tiles that a group of heads reads repeatedly
BACKWARD_REGISTERS = {64: (208, 24), 80: (216,), 96: (216,), 128: (216,)}
"""Registers per thread, by padded head dimension: of the warpgroups for dK and dV, and of the loader. The warpgroup for
dQ gets the rest, 72: with less than 64 ptxas ignores all requests."""


@dataclass(frozen=True, kw_only=True)
class ForwardTiles:
    """Tile sizes and grouping of a launch of attention_forward_kernel."""

    consumers: int
    """Warpgroups of 64 queries in a program: 1, 2 or 3."""
    group: int
    """Maximum number of heads whose programs are interleaved in the launch order, so that they share the L2 cache."""

    @property
    def registers(self) -> tuple[int, int]:
        """Registers per thread of a consumer and of the loader."""
        return {1: (232, 24), 2: (240, 24), 3: (160, 32)}[self.consumers]

    @property
    def maxnreg(self) -> int | None:
        """Registers per thread before they are redistributed; with one consumer two programs fit on an SM."""
        return 128 if self.consumers == 1 else None


def forward_tiles(
    block_d: int, batch_heads: int, n_queries: int, n_keys: int, window_left: int | None = None
) -> ForwardTiles:
    """Choose the forward kernel's tiles for a head dimension padded to 64, 80, 96 or 128."""
    keys_and_values = n_keys * block_d * 4  # bytes of a head
    if block_d > 64:
        return ForwardTiles(consumers=2, group=max(1, L2_SHARE // 4 // keys_and_values))
    # Small tiles compute less beyond the diagonal and the end, and are enough for all SMs; large ones load
    # less.
    narrow = window_left is not None and window_left < 2048
    consumers = 1 if n_queries < 2048 or batch_heads * n_queries < 2**16 or narrow else 3
    return ForwardTiles(consumers=consumers, group=max(1, L2_SHARE // keys_and_values))


def backward_group(block_d: int, n_queries: int, deterministic: bool = False) -> int:
    """Choose the heads in a group of the backward kernel for a head dimension padded to 64, 80, 96 or 128."""
    least = 32 if deterministic else 1  # programs of a head wait for each other: the fewer at once, the better
    return max(least, L2_SHARE // (n_queries * block_d * 8))  # queries, output gradients, and the sums of dQ in fp32
