"""The tile sizes of the Hopper kernels for each problem."""

from dataclasses import dataclass

L2_SHARE = 32 * 2**20  # bytes; what the tiles that a group of heads reads again and again may take of the 50 MiB
BACKWARD_REGISTERS = {64: (208, 24), 128: (216,)}
"""Per thread, by padded head dimension: of the warpgroups for dK and dV and of the loader. The warpgroup for dQ gets
the rest, 72: with less than 64 ptxas ignores all requests."""


@dataclass(frozen=True, kw_only=True)
class ForwardTiles:
    """How attention_forward_kernel is launched."""

    consumers: int
    """Warpgroups of 64 queries in a program: 1, 2 or 3."""
    stages: int
    """Of the ring of keys and values."""
    block_n: int = 128
    """Keys per step."""
    group: int
    """Heads, at most, whose programs take turns in the launch order, so that they meet in the L2 cache."""

    @property
    def registers(self) -> tuple[int, int]:
        """Per thread of a consumer and of the loader."""
        return {1: (232, 24), 2: (240, 24), 3: (160, 32)}[self.consumers]

    @property
    def maxnreg(self) -> int | None:
        """Registers per thread before they are shared out; with one consumer two programs fit on a multiprocessor."""
        return 128 if self.consumers == 1 else None


@dataclass(frozen=True, kw_only=True)
class BackwardTiles:
    """How attention_backward_d64_kernel or attention_backward_d128_kernel is launched."""

    stages: int
    """Of the ring of queries and output gradients."""
    ds_stages: int = 2
    """Of the ring of dS."""
    early_dv: bool = False
    """In attention_backward_d64_kernel, issue the product for dV before dP is waited for."""
    group: int
    """As in ForwardTiles."""


def forward_tiles(block_d: int, n_keys: int) -> ForwardTiles:
    """The forward kernel's tiles for a head dimension padded to 64 or 128."""
    group = max(1, L2_SHARE // (2 * n_keys * block_d * 2))  # keys and values
    return ForwardTiles(consumers=3 if block_d == 64 else 2, stages=3 if block_d == 64 else 2, group=group)


def backward_tiles(block_d: int, n_queries: int) -> BackwardTiles:
    """The backward kernel's tiles for a head dimension padded to 64 or 128."""
    group = max(1, L2_SHARE // (n_queries * block_d * 8))  # queries, output gradients, and the sums of dQ in fp32
    return BackwardTiles(stages=2, early_dv=block_d == 64, group=group)
