"""Numbers of every rank, brought together."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def gather(numbers: Sequence[float], device: torch.device) -> list[list[float]]:
    """Each rank's numbers, by rank, on every rank; all give equally many, and the same device as their group."""
    mine = torch.tensor(numbers, dtype=torch.float64, device=device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return torch.stack(everyones).tolist()
