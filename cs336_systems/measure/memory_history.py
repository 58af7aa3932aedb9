"""Record the events of PyTorch's CUDA allocator during one step, for `memory_timeline` to replay."""

import contextlib
import linecache
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from cs336_systems.measure.memory import Unavailable, reset_peak
from cs336_systems.measure.memory_recording import ALLOCATED, BlockState, Event, Operator, Recording, Segment, Stage
from cs336_systems.measure.memory_timeline import (
    BACKWARD,
    GRADIENTS,
    OPTIMIZER_STATE,
    OTHER_TENSORS,
    PARAMETERS,
    WORKSPACES,
)
from cs336_systems.measure.saved_tensors import address
from cs336_systems.measure.timing import no_garbage_collection, synchronize

INSTRUMENT = Path(__file__).parent
PROJECT = INSTRUMENT.parents[1]
LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""Environment variables that change how the allocator divides memory; the replay does not model them."""


def require_history(device: torch.device) -> None:
    """Raise Unavailable if the allocator cannot be recorded on this device or with these settings."""
    if device.type != "cuda":
        raise Unavailable("PyTorch keeps no history of allocations on a CPU")
    for name in ALLOCATOR_SETTINGS:
        if value := os.environ.get(name):
            raise Unavailable(f"{name} is {value!r}; the allocator can be recorded only if it is not set")


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Make the allocator record its events and the Python line that caused each."""
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


@no_garbage_collection()
def record_step(
    stages: Mapping[str, Callable[[], None]],
    owners: Callable[[], dict[int, str]],
    weights: Iterable[Tensor],
    device: torch.device,
) -> Recording:
    """Run the stages of a step one after another on a CUDA device, and record the device's memory.

    `owners` returns the category of `memory_timeline` of the memory at each address, at the time of the call.
    Conversions of the weights to another dtype are recorded as such.
    """
    operators = OperatorLog(weights, lambda: allocation_counts(device)[0])
    ends: list[Stage] = []
    synchronize(device)
    owners_before = owners()
    segments = segments_of(torch.cuda.memory._snapshot(device))
    reset_peak(device)
    with history():
        start = allocation_counts(device)
        operators.start = start[0]
        for name, stage in stages.items():
            # Not in backward: Python objects of autograd's tensors might prolong their lifetimes.
            with contextlib.nullcontext() if name == BACKWARD else operators:
                stage()
            ends.append(Stage(name, sum(allocation_counts(device)) - sum(start)))
        peak = torch.cuda.max_memory_allocated(device)
        snapshot = torch.cuda.memory._snapshot(device)
    workspaces = dict.fromkeys(workspace_addresses(device), WORKSPACES)
    events = snapshot["device_traces"][device.index or 0]
    return Recording(
        segments=segments,
        events=[
            Event(
                event["action"],
                event.get("addr", 0),
                event["size"],
                event["time_us"],
                source_of(event) if event["action"] == "alloc" else "",
            )
            for event in events
        ],
        stages=ends,
        operators=operators.calls,
        owners_before=owners_before | workspaces,
        owners_after=owners() | workspaces,
        peak=peak,
    )


def allocation_counts(device: torch.device) -> tuple[int, int]:
    """Count allocations and frees so far."""
    counts = torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]
    return counts["allocated"], counts["freed"]


def segments_of(snapshot: Mapping[str, Any]) -> list[Segment]:
    """Read the segments of an allocator's snapshot, with their blocks."""
    return [
        Segment(
            segment["segment_type"] == "small",
            [
                BlockState(block["address"], block["size"], block["requested_size"], block["state"])
                for block in segment["blocks"]
            ],
        )
        for segment in snapshot["segments"]
    ]


def workspace_addresses(device: torch.device) -> set[int]:
    """Find the addresses of cuBLAS's workspaces by releasing them; PyTorch keeps one per thread and stream."""

    def in_use() -> set[int]:
        segments = segments_of(torch.cuda.memory._snapshot(device))
        return {block.address for segment in segments for block in segment.blocks if block.state == ALLOCATED}

    synchronize(device)
    before = in_use()
    torch._C._cuda_clearCublasWorkspaces()
    return before - in_use()


def owners_of_training(
    model: nn.Module, optimizer: Optimizer | None, others: Iterable[Tensor | None]
) -> dict[int, str]:
    """Map addresses of a training step's long-lived tensors to their categories.

    `others` are inputs and outputs that exist at the time.
    """
    parameters = list(model.parameters())
    states = optimizer.state.values() if optimizer else []
    groups: list[tuple[str, Iterable[object]]] = [
        (OTHER_TENSORS, [*model.buffers(), *others]),
        (OPTIMIZER_STATE, [tensor for state in states for tensor in state.values()]),
        (GRADIENTS, [parameter.grad for parameter in parameters]),
        (PARAMETERS, parameters),
    ]
    return {
        address(tensor): category for category, tensors in groups for tensor in tensors if isinstance(tensor, Tensor)
    }


def source_of(event: Mapping[str, Any]) -> str:
    """Find the innermost line of a stack outside libraries and this instrument, as file:line function."""
    for frame in event.get("frames", []):
        if file := source_file(frame["filename"]):
            return f"{file}:{frame['line']} {frame['name']}"
    return ""


@cache
def source_file(name: str) -> str:
    """Format a file for readers: its path in the project, or else its folder and name; empty for a library's."""
    path = Path(name)
    if path.suffix != ".py" or path.parent == INSTRUMENT or LIBRARY_FOLDERS.intersection(path.parts):
        return ""
    parts = path.relative_to(PROJECT).parts if path.is_relative_to(PROJECT) else path.parts[-2:]
    return "/".join(parts)


def code_at(source: str) -> str:
    """Read the line that `source_of` names; empty for a file outside the project."""
    file, _, place = source.partition(":")
    return linecache.getline(str(PROJECT / file), int(place.split()[0])).strip() if place else ""


class OperatorLog(TorchDispatchMode):
    """Records the operator of each allocation, by a count of allocations so far, and conversions of weights as such."""

    def __init__(self, weights: Iterable[Tensor], count: Callable[[], int]):
        super().__init__()
        self.weights = {address(weight) for weight in weights}
        self.count = count
        self.start = 0
        self.calls: list[Operator] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first = self.count()
        result = func(*args, **(kwargs or {}))
        end = self.count()
        if end > first:
            converts = func is torch.ops.aten._to_copy.default and address(args[0]) in self.weights
            name = func.overloadpacket.__name__
            self.calls.append(Operator(name, first - self.start, end - self.start, converts))
        return result
