"""Where ranks' weights are farthest from what they should be."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cs336_systems.parallel.gather import gather


def relative(error: Tensor, whole: Tensor) -> float:
    """The norm of an error relative to that of what it is an error of; 0 where there is none."""
    off = error.norm()
    return (off / whole.norm()).item() if off else 0.0


def largest(errors: Mapping[str, float], device: torch.device) -> tuple[str, float]:
    """The name of the largest of a rank's errors, and the largest of all ranks; no number is larger than NaN."""
    mine = torch.tensor(list(errors.values()), dtype=torch.float64)
    name = list(errors)[int(mine.argmax())]
    return name, torch.tensor(gather([mine.max().item()], device)).max().item()
