"""Who updates which parameter: whole parameters, in buckets that travel in one collective."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

ALIGNMENT = 256
"""Bytes at whose multiples parameters begin, as those that CUDA allocates do: matrix products choose their kernel by
it, and another kernel rounds differently."""
EVEN = 1.05
"""A collective needs as much of each rank. So much more than the numbers there are may be padding."""
PATIENCE = 4
"""A full bucket waits for more parameters until ranks own nearly equal parts, up to so many times its size per rank."""


def plan_buckets(tensors: Sequence[Tensor], loads: list[int], bucket_bytes: float) -> list[dict[int, int]]:
    """Share tensors out among ranks, and put them into buckets.

    Each bucket has one dtype, and either parts of nearly the same size for all ranks or a single owner: the tensors
    that cannot be shared out evenly, such as one that is larger than all the others.

    Args:
        tensors: in the order in which buckets are to be complete; neighbors share a bucket.
        loads: bytes that each rank owns already; what it is given here is added.
        bucket_bytes: what a bucket holds at least, if there is as much.

    Returns:
        for each bucket its members, by their indices, and their owners; in the order of the buckets' last members.
    """
    sizes = [tensor.nbytes for tensor in tensors]
    buckets: list[dict[int, int]] = []

    def share_out(members: list[int], *, only_evenly: bool) -> bool:
        owners = choose_owners([sizes[i] for i in members], loads)
        even = is_even([sizes[i] for i in members], owners, len(loads))
        if only_evenly and not even:
            return False
        owner_of = dict(zip(members, owners, strict=True))
        for i, owner in owner_of.items():
            loads[owner] += sizes[i]
        parts = [owner_of] if even else [{i: o for i, o in owner_of.items() if o == rank} for rank in set(owners)]
        buckets.extend(parts)
        return True

    filling: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        members = filling.setdefault((tensor.dtype, tensor.device), [])
        members.append(index)
        size = sum(sizes[i] for i in members)
        if size >= bucket_bytes and share_out(members, only_evenly=size < PATIENCE * len(loads) * bucket_bytes):
            del filling[tensor.dtype, tensor.device]
    for members in filling.values():
        share_out(members, only_evenly=False)
    return sorted(buckets, key=max)


def choose_owners(sizes: Sequence[int], loads: Iterable[int]) -> list[int]:
    """An owner for each size: the largest first, each to the rank that has least (Graham 1969, longest first)."""
    loads = list(loads)
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(len(loads)), key=loads.__getitem__)
        loads[owners[i]] += sizes[i]
    return owners


def is_even(sizes: Iterable[int], owners: Iterable[int], ranks: int) -> bool:
    """Whether parts as large as the largest waste little memory and time."""
    parts = [0] * ranks
    for size, owner in zip(sizes, owners, strict=True):
        parts[owner] += aligned(size, ALIGNMENT)
    return ranks * max(parts) <= EVEN * sum(parts)


def aligned(size: int, to: int) -> int:
    """The next multiple."""
    return -(-size // to) * to
