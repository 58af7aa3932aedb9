"""Messages from PyTorch's flight recorder: recorded in C++, in each process group, at no cost to a step.

It has collectives of all groups over NCCL and Gloo, but no Gloo sends between two ranks.
"""

import math
import pickle
from collections.abc import Sequence
from time import time_ns
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

from cs336_systems.measure.memory import Unavailable

DUMPS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}
"""Functions that return the recorder's entries, by backend. Builds of PyTorch may lack one."""
SIZES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Float8_e4m3fn": 1, "Float8_e5m2": 1}


class Messages:
    """Counts messages of floating-point numbers of this rank."""

    def __init__(self) -> None:
        self._dump = getattr(_distributed_c10d, DUMPS.get(dist.get_backend(), ""), None)
        self.restart()

    def restart(self) -> None:
        """Start counting."""
        self._start = time_ns()

    def count(self) -> tuple[int, int] | None:
        """Count messages and bytes; None without a recorder, or if it has dropped some; Unavailable if it is off."""
        if self._dump is None:
            return None
        # All collectives, without the code that called them.
        entries = pickle.loads(self._dump(True, False, False)).get("entries")
        if not entries:
            raise Unavailable("not timed: messages cannot be counted while TORCH_FR_BUFFER_SIZE is 0")
        oldest = min(entries, key=lambda entry: entry["record_id"])
        if oldest["record_id"] > 0 and oldest["time_created_ns"] > self._start:
            return None
        new = (entry for entry in entries if entry["time_created_ns"] > self._start)
        sizes = [size for entry in new if "barrier" not in entry["profiling_name"] and (size := size_of(entry))]
        return len(sizes), sum(sizes)


def size_of(entry: dict[str, Any]) -> int:
    """Bytes of a recorded collective: the larger of its inputs and outputs."""
    return max(bytes_of(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output"))


def bytes_of(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int:
    """Bytes of floating-point tensors."""
    return sum(SIZES.get(dtype, 0) * math.prod(shape) for shape, dtype in zip(shapes, dtypes, strict=False))
