"""The processes that measure a cell together, or a single process."""

import torch
import torch.distributed as dist


def rank() -> int:
    """This process's rank; 0 for a single process."""
    return dist.get_rank() if dist.is_initialized() else 0


def slowest(seconds: list[float], device: torch.device) -> list[float]:
    """Each lap on the slowest rank; unchanged for a single process."""
    if not dist.is_initialized():
        return seconds
    most = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()
