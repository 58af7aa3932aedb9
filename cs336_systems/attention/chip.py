"""The properties of a GPU's chip on which the choice of kernels and tiles depends."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None and torch.version.hip is None
"""Whether this PyTorch can launch the kernels: it has Triton and is not a ROCm build, which also reports CUDA."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A model of NVIDIA GPU, as its driver describes it."""

    capability: tuple[int, int]
    """Compute capability."""
    shared_memory: int
    """Bytes of shared memory available to a program."""
    sms: int
    """Streaming multiprocessors."""


H200 = Chip(capability=(9, 0), shared_memory=227 * 1024, sms=132)
"""The chip on which the tile tables were measured, also assumed in the interpreter."""


@cache
def chip_of(device: int) -> Chip:
    """Look up the chip of a CUDA device; for a CPU, -1, where kernels are interpreted, the H200's."""
    if device < 0:
        return H200
    properties = torch.cuda.get_device_properties(device)
    return Chip(
        capability=(properties.major, properties.minor),
        shared_memory=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        sms=properties.multi_processor_count,
    )


def kernel_obstacle(device: torch.device) -> str:
    """Name the reason why flash_attention does not run this project's kernels on a device; empty if it does."""
    if device.type != "cuda":
        return f"there are none for {device.type}"
    if not HAS_TRITON:
        return "there are none for ROCm" if torch.version.hip else "Triton is not installed"
    return triton_obstacle(chip_of(torch.cuda.current_device() if device.index is None else device.index))


def triton_obstacle(chip: Chip) -> str:
    """Name the reason why the Triton attention kernels do not support this chip; empty if they do."""
    if chip.capability < (8, 0):
        return "Triton has no tensor-core matmul for compute capabilities below 8.0"
    if chip.shared_memory < 99 * 1024:
        return f"the tiles need 99 KB of shared memory, and this GPU has {chip.shared_memory // 1024}"
    return ""
