"""Gather numbers from every rank."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


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
