"""Bytes of the gradients that a data-parallel wrapper copies into buckets."""

from collections.abc import Sequence
from functools import cache

from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import weight_sizes

MB = 10**6


@cache
def bucketed_bytes(setting: Setting) -> int:
    """Bytes of buckets with more than one gradient: a single gradient stays in place."""
    if setting.bucket_mb is None:
        return 0
    sizes = weight_sizes(setting.shape, setting.vocab_size, setting.weight_bytes)[::-1]
    return sum(sum(group) for group in grouped(sizes, setting.bucket_mb * MB) if len(group) > 1)


def grouped(sizes: Sequence[int], most: float) -> list[list[int]]:
    """Consecutive sizes in groups of at most `most` bytes; a larger one is alone."""
    groups: list[list[int]] = []
    for size in sizes:
        if not groups or sum(groups[-1]) + size > most:
            groups.append([])
        groups[-1].append(size)
    return groups
