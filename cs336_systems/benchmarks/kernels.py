"""Whether a device runs this project's kernels of attention, or something else in their place."""

import torch

from cs336_systems.attention.chip import kernel_obstacle
from cs336_systems.measure.memory import Unavailable


def require_kernels(device: torch.device) -> None:
    """Check that a GPU runs this project's kernels: what runs in their place must not be measured under their name.

    Raises:
        Unavailable: it does not.
    """
    if device.type == "cuda" and (obstacle := kernel_obstacle(device)):
        raise Unavailable(f"this project's kernels do not run here: {obstacle}")
