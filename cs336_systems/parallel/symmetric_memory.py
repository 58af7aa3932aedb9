"""Symmetric memory of the ranks of one machine: each rank has a buffer that all ranks may write into.

Between GPUs that reach each other (NVLink, PCIe), copy engines perform the writes, without SMs. Between processes on a
CPU they are plain copies.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class SymmetricMemory:
    """One buffer per rank of a process group."""

    of_rank: list[Tensor]
    """Each rank's buffer, as mapped into this rank: bytes [size]."""
    barrier: Callable[[], None]
    """Wait until all ranks have called it; afterwards each rank sees all earlier writes. On a GPU the current stream
    waits, not the host."""


def allocate(size: int, device: torch.device, group: dist.ProcessGroup | None = None) -> SymmetricMemory:
    """Allocate `size` bytes on each rank of `group` (None: all ranks); all ranks call it with the same size.

    A RuntimeError is raised if the ranks cannot reach each other's memory.
    """
    try:
        return _on_gpus(size, device, group) if device.type == "cuda" else _on_cpus(size, group)
    except (RuntimeError, OSError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise RuntimeError(f"the ranks cannot reach each other's memory: {error}") from error


def _on_gpus(size: int, device: torch.device, group: dist.ProcessGroup | None) -> SymmetricMemory:
    # A prototype in PyTorch that other parts of it use; imported here since it needs a GPU build.
    import torch.distributed._symmetric_memory as symmetric_memory

    mine = symmetric_memory.empty(size, dtype=torch.uint8, device=device)
    handle = symmetric_memory.rendezvous(mine, group or dist.distributed_c10d._get_default_group())
    # The handle's tensors do not keep the memory alive; ours does, for anyone who holds a view of it.
    of_rank = [handle.get_buffer(rank, (size,), torch.uint8) for rank in range(handle.world_size)]
    of_rank[handle.rank] = mine
    return SymmetricMemory(of_rank, handle.barrier)


def _on_cpus(size: int, group: dist.ProcessGroup | None) -> SymmetricMemory:
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as file:
        file.truncate(size)
        names = [""] * dist.get_world_size(group)
        dist.all_gather_object(names, file.name, group=group)
        of_rank = [torch.from_file(name, shared=True, size=size, dtype=torch.uint8) for name in names]
        dist.barrier(group)  # All ranks have opened the files, so their names are no longer needed.
    return SymmetricMemory(of_rank, partial(dist.barrier, group))
