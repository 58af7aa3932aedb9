"""Bytes of the gradients that a data-parallel wrapper copies into buckets."""

from collections.abc import Sequence
from functools import cache

from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import parameters
from cs336_systems.sizes import ModelShape

MB = 10**6


@cache
def bucketed_bytes(setting: Setting) -> int:
    """Bytes of buckets with more than one gradient: a lone gradient stays where it is."""
    if setting.bucket_mb is None:
        return 0
    sizes = backward_sizes(setting.shape, setting.vocab_size, setting.weight_bytes)
    return sum(sum(group) for group in grouped(sizes, setting.bucket_mb * MB) if len(group) > 1)


def backward_sizes(shape: ModelShape, vocab_size: int, each: int) -> list[int]:
    """Bytes of each gradient, in the order in which the backward pass completes them, `each` bytes per number."""
    square, wide, d = shape.d_model**2, shape.d_model * shape.d_ff, shape.d_model
    block = [wide, wide, wide, d, square, square, square, square, d]
    sizes = [vocab_size * d, d, *shape.num_layers * block, vocab_size * d]
    assert sum(sizes) == parameters(shape, vocab_size)
    return [each * size for size in sizes]


def grouped(sizes: Sequence[int], most: float) -> list[list[int]]:
    """Consecutive sizes in groups of at most `most` bytes; a larger one is alone."""
    groups: list[list[int]] = []
    for size in sizes:
        if not groups or sum(groups[-1]) + size > most:
            groups.append([])
        groups[-1].append(size)
    return groups
