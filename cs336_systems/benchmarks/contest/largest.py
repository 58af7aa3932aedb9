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
    """The largest of all ranks' errors, and its name; all have the same names. No number is larger than NaN."""
    everyones = torch.tensor(gather(list(errors.values()), device), dtype=torch.float64)
    position = int(everyones.argmax())
    return list(errors)[position % len(errors)], everyones.flatten()[position].item()
