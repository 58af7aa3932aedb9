"""Features of NVIDIA GPUs only: PyTorch also calls ROCm's GPUs `cuda`."""

import torch

NONE = (0, 0)
"""Below any NVIDIA GPU's compute capability."""


def uuid(device: torch.device) -> str:
    """A CUDA device's UUID, as PyTorch prints it; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def compute_capability(device: torch.device) -> tuple[int, int]:
    """An NVIDIA GPU's compute capability; NONE for any other device, also ROCm's, whose numbers mean something else."""
    if device.type != "cuda" or torch.version.hip:
        return NONE
    return torch.cuda.get_device_capability(device)
