"""Numbers from every rank, and the memory that each can still allocate."""

from collections.abc import Sequence

import psutil
import torch
import torch.distributed as dist

from cs336_systems.measure.memory import Unavailable, in_use


def gather(numbers: Sequence[float], device: torch.device) -> list[list[float]]:
    """Gather each rank's numbers, as many on each, on every rank, by rank."""
    mine = torch.tensor(numbers, dtype=torch.float64, device=device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return torch.stack(everyones).tolist()


def slowest(seconds: Sequence[float], device: torch.device) -> list[float]:
    """Reduce each rank's laps to the slowest rank's; a single process has its own."""
    if not dist.is_initialized():
        return list(seconds)
    return [max(lap) for lap in zip(*gather(seconds, device), strict=True)]


def check_memory(needed: int, device: torch.device) -> None:
    """Raise Unavailable on all ranks if one has fewer than the needed bytes of free memory."""
    dist.barrier()  # Now all ranks have freed their previous memory.
    least = min(rank[0] for rank in gather([spare_memory(device)], device))
    if needed > least:
        raise Unavailable(f"each process needs {needed / 1e9:.1f} GB of memory, and {least / 1e9:.1f} GB are free")


def spare_memory(device: torch.device) -> int:
    """Bytes that this rank can still allocate."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - in_use(device)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return psutil.virtual_memory().available // ranks
