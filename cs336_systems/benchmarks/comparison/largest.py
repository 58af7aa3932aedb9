"""The largest error over all ranks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cs336_systems.parallel.gather import gather


def relative(error: Tensor, whole: Tensor) -> float:
    """The norm of an error relative to the norm of the reference; 0 if there is no error."""
    off = error.norm()
    return (off / whole.norm()).item() if off else 0.0


def largest(errors: Mapping[str, float], device: torch.device) -> tuple[str, float]:
    """Find the largest error of all ranks, and its name; all ranks have the same names. NaN counts as the largest."""
    everyones = torch.tensor(gather(list(errors.values()), device), dtype=torch.float64)
    position = int(everyones.argmax())
    return list(errors)[position % len(errors)], everyones.flatten()[position].item()
