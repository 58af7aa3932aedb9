"""Assignment of parameters to owners: whole parameters, in buckets that one collective sends."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cs336_systems.limits import ALIGNMENT, EVEN, PATIENCE


def plan_buckets(tensors: Sequence[Tensor], loads: list[int], bucket_bytes: float) -> list[dict[int, int]]:
    """Assign tensors to ranks, and put them into buckets.

    Each bucket has one dtype, and either parts of nearly the same size for all ranks or a single owner: the tensors
    that cannot be distributed evenly, such as one that is larger than all the others.

    Args:
        tensors: in the order in which buckets should be complete; neighbours share a bucket.
        loads: bytes that each rank already owns; updated by this call.
        bucket_bytes: minimum size of a bucket, except the last one of a dtype.

    Returns:
        for each bucket, the owner of each member by the member's index; in the order of the buckets' last members.
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
    """Assign an owner to each size: the largest first, each to the rank with the least load (Graham 1969)."""
    loads = list(loads)
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(len(loads)), key=loads.__getitem__)
        loads[owners[i]] += sizes[i]
    return owners


def find_overlap(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Find two tensors that share memory, by their indices; None if no two do."""
    spans = []
    for index, tensor in enumerate(tensors):
        if tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans.append((str(tensor.device), begin, begin + (last + 1) * tensor.itemsize, index))
    farthest = ("", 0, 0, 0)  # of those that begin before
    for span in sorted(spans):
        if span[0] == farthest[0] and span[1] < farthest[2]:
            return farthest[3], span[3]
        farthest = span  # Earlier ones overlap neither it nor later ones.
    return None


def check_separate(named: Sequence[tuple[str, Tensor]]) -> None:
    """Raise a ValueError that names them if two tensors share memory."""
    if overlap := find_overlap([tensor for _, tensor in named]):
        first, second = (named[index][0] for index in overlap)
        raise ValueError(f"{first} and {second} share memory; allowed: each parameter in its own memory")


def is_even(sizes: Iterable[int], owners: Iterable[int], ranks: int) -> bool:
    """Whether padding all ranks' parts to the largest wastes little memory and time."""
    parts = [0] * ranks
    for size, owner in zip(sizes, owners, strict=True):
        parts[owner] += aligned(size, ALIGNMENT)
    return ranks * max(parts) <= EVEN * sum(parts)


def aligned(size: int, to: int) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // to) * to
