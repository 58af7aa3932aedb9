"""Strategies of activation checkpointing on a chain of equal blocks: kept inputs, and repeated forward passes."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """A strategy's peak memory (if a block saves at least as much as its input) and its cost."""

    kept: tuple[int, ...]
    """Blocks, counted from 0, with only their input kept."""
    saved: range
    """Blocks with all tensors that their backward passes need, including their inputs."""
    forwards: int
    """Forward passes of blocks in a step."""

    def memory(self, residual: float, saved: float) -> float:
        """Memory of the activations, given the memory of a block's input and of its saved tensors."""
        return len(self.kept) * residual + len(self.saved) * saved


def keep_all(blocks: int) -> Strategy:
    """No checkpointing."""
    return Strategy((), range(blocks), blocks)


def one_level(blocks: int, segment: int) -> Strategy:
    """Keep each segment's input, and recompute the segment with everything saved (Chen et al. 2016)."""
    start = max(blocks // segment - 1, 0) * segment  # of the last full segment
    return Strategy(tuple(range(0, start, segment)), range(start, min(start + segment, blocks)), 2 * blocks)


def nested(blocks: int) -> Strategy:
    """Keep the middle block's input, treat the second half in the same way, then the first: a tree that halves the
    chain.

    A chain is run up to its middle, without saving. So the first descent of the tree is the forward pass of the step.
    """
    kept, start = [], 0
    while blocks - start > 1:
        kept.append(start)
        start += math.ceil((blocks - start) / 2)
    return Strategy(tuple(kept), range(start, blocks), _nested_forwards(blocks))


def from_the_start(blocks: int) -> Strategy:
    """Keep only the first block's input, and run from it to each block at its turn."""
    return Strategy((0,) if blocks > 1 else (), range(blocks - 1, blocks), blocks * (blocks + 1) // 2)


def _nested_forwards(blocks: int) -> int:
    if blocks == 1:
        return 1
    first = math.ceil(blocks / 2)
    return first + _nested_forwards(first) + _nested_forwards(blocks - first)
