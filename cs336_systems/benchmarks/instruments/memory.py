"""Bandwidth of the device's memory beyond its caches: copy, read and write."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cs336_systems.benchmarks.instruments.work import Call, Work, WrongResults

BYTES = {"cuda": 2**31, "cpu": 2**27}
"""Size of each array: many times a cache."""
SHARE = 8
"""Divisor of a GPU's free memory for the maximum size of an array."""


def works(device: torch.device) -> Iterator[Work]:
    """Copy (bytes both read and written count), read and write."""
    size = BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // SHARE // 1024 * 1024)
    for name, call, moved in (("copy", copy, 2), ("read", read, 1), ("write", write, 1)):
        yield Work(name=name, metric="bandwidth", amount=1e-9 * moved * size, build=partial(call, size))


def copy(size: int, device: torch.device) -> Call:
    """Copy with a negating kernel, which is faster on an H200 than a driver's copy; its result is checked."""
    source = numbers(size, device)
    target = torch.empty_like(source)
    torch.neg(source, out=target)
    if wrong := int((target != -source).sum()):
        raise WrongResults(wrong, f"{wrong} of {source.numel()} elements of a copy differ")
    return lambda: torch.neg(source, out=target)


def read(size: int, device: torch.device) -> Call:
    """Read by a reduction."""
    source = numbers(size, device)
    return lambda: source.sum()


def write(size: int, device: torch.device) -> Call:
    """Write one number everywhere."""
    target = numbers(size, device)
    return lambda: target.fill_(1.5)


def numbers(size: int, device: torch.device) -> Tensor:
    """Draw random normal fp32 numbers with the given number of bytes."""
    return torch.randn(size // 4, device=device)
