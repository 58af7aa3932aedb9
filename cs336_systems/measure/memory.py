"""Peak memory of a device, and its release between the cells of a job."""

import gc
import sys

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.record.measurement import Measurement, skipped, summarize


class Unavailable(Exception):
    """Raised if this machine lacks something; its text is the reason printed in the report."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception means that memory ran out, on a GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # PyTorch's host allocator raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def in_use(device: torch.device) -> int:
    """Bytes held by tensors, including libraries' workspaces; 0 if PyTorch does not count them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def most_in_use(device: torch.device) -> int:
    """The maximum bytes held by tensors since `reset_peak`; 0 if PyTorch does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Start a new peak measurement."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device, above: int = 0) -> Measurement:
    """The maximum memory held by tensors since `reset_peak`, less `above` bytes, or why it is not known."""
    if device.type != "cuda":
        return skipped("peak_memory", "MiB", "PyTorch does not count peak memory on a CPU")
    return summarize("peak_memory", "MiB", [(most_in_use(device) - above) / MIB])


def allocated(metric: str, count: int, device: torch.device) -> Measurement:
    """Bytes that PyTorch's allocator counted, or why it did not count."""
    if device.type != "cuda":
        return skipped(metric, "MiB", "PyTorch does not count memory in use on a CPU")
    return summarize(metric, "MiB", [count / MIB])


def device_allocations(device: torch.device) -> int:
    """Number of PyTorch's memory requests to the driver so far; 0 if PyTorch does not count them."""
    return torch.cuda.memory_stats(device)["num_device_alloc"] if device.type == "cuda" else 0


def allocations_since(start: int, device: torch.device) -> Measurement:
    """Number of requests to the driver since the count was `start`, or why it is not known."""
    if device.type != "cuda":
        return skipped("device_allocations", "", "PyTorch does not count its allocations on a CPU")
    return summarize("device_allocations", "", [device_allocations(device) - start])


def release(device: torch.device) -> None:
    """Release all unreferenced memory, and reset compiled graphs."""
    if "torch._dynamo" in sys.modules:  # If not, nothing was compiled, and importing it takes a second.
        torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
