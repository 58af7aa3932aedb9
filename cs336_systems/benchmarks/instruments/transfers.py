"""Bandwidth between the host's page-locked memory and the device, over PCIe or its replacement."""

from collections.abc import Iterator
from functools import partial

import torch

from cs336_systems.benchmarks.instruments.work import Call, Work
from cs336_systems.measure.memory import Unavailable

BYTES = 2**28


def works(device: torch.device) -> Iterator[Work]:
    """From host to device, and from device to host."""
    for name in ("host to device", "device to host"):
        yield Work(
            name=name,
            metric="bandwidth",
            amount=1e-9 * BYTES,
            build=partial(build, name == "host to device"),
            replayed=False,
        )


def build(to_device: bool, device: torch.device) -> Call:
    """Copy between two buffers, one of them page-locked; Unavailable if the host is the only device."""
    if device.type != "cuda":
        raise Unavailable("a CPU's memory is the host's")
    there = torch.empty(BYTES, dtype=torch.uint8, device=device)
    here = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    target, source = (there, here) if to_device else (here, there)
    return lambda: target.copy_(source, non_blocking=True)
