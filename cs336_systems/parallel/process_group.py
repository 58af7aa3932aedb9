"""A rank of a torchrun launch: its number, its device, and the process group that connects it with the others."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others in a collective before it gives up."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of a launch."""

    number: int
    """From 0; only rank 0 writes and prints."""
    processes: int
    """Processes in the launch: the world size."""
    local_number: int
    """From 0, among the processes of this host."""


ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""What torchrun sets in each process, and the values outside a launch."""


def current_rank() -> Rank:
    """This process's rank in a torchrun launch, from the environment; outside a launch, that of a lone process."""
    number, processes, local = (int(os.environ.get(name, default)) for name, default in ENVIRONMENT.items())
    return Rank(number=number, processes=processes, local_number=local)


@contextlib.contextmanager
def process_group(rank: Rank, device: torch.device) -> Iterator[None]:
    """Connect the ranks of a launch: NCCL between GPUs, each bound to its own, Gloo between CPUs.

    A lone process has no group.
    """
    if rank.processes == 1:
        yield
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    yield
    # Not after an error: it would wait for ranks that wait for this one. torchrun ends them once this one is gone.
    dist.destroy_process_group()
