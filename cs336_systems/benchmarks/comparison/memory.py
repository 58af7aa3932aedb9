"""Memory of a contender on each rank, at several moments of a step, and outside PyTorch's allocator."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.comparison.agreement import free_memory
from cs336_systems.benchmarks.comparison.training import Training
from cs336_systems.benchmarks.ranks import gather
from cs336_systems.experiments.optimizer_sharding import MOMENTS
from cs336_systems.measure.memory import in_use, most_in_use, reset_peak
from cs336_systems.measure.timing import synchronize
from cs336_systems.record.measurement import Measurement, summarize

INITIALIZED, BEFORE_UPDATE, AFTER_UPDATE = MOMENTS


def memory_rows(training: Training, device: torch.device, base: int, details: Mapping[str, str]) -> list[Measurement]:
    """Measure the memory of a new training run at each of the moments; runs two steps.

    Peaks were not reset since its start; `base` is the allocator's bytes in use before.
    """

    def at(moment: str) -> Iterator[Measurement]:
        """Measure memory now, above `base`, and the peak since the last call."""
        synchronize(device)
        named = {**details, "moment": moment}
        for part, count in held(training).items():
            yield on_each_rank("held", count, device, named | {"part": part})
        if device.type == "cuda":
            above = getattr(training.optimizer, "peer_bytes", 0) - base  # Symmetric memory is outside the allocator.
            yield on_each_rank("allocated", in_use(device) + above, device, named)
            yield on_each_rank("peak_memory", most_in_use(device) + above, device, named)
            reset_peak(device)

    rows = [*at(INITIALIZED)]
    for phase in training.careful.values():  # State exists from the first step on.
        phase()
    free_memory(device)  # PyTorch's wrapper makes new buckets in the next step; NCCL's watchdog may hold the old ones.
    reset_peak(device)
    for name, phase in training.careful.items():
        if name == "optimizer":
            rows += at(BEFORE_UPDATE)
        phase()
    return [*rows, *at(AFTER_UPDATE)]


def held(training: Training) -> dict[str, int]:
    """Bytes of the storages of parameters, gradients and this rank's optimizer state."""
    parameters = list(training.wrapped.parameters())
    states = [state for part in parts_of(training.optimizer) for state in part.state.values()]
    return {
        "parameters": storage_bytes(parameters),
        "gradients": storage_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer_state": storage_bytes(
            value for state in states for value in state.values() if isinstance(value, Tensor)
        ),
    }


def parts_of(optimizer: Optimizer) -> Iterator[Optimizer]:
    """List an optimizer and its inner optimizers, where PyTorch's sharded optimizer keeps the state."""
    yield optimizer
    for value in vars(optimizer).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        yield from (part for part in values if isinstance(part, Optimizer))


def on_each_rank(metric: str, count: int, device: torch.device, details: dict[str, str]) -> Measurement:
    """Gather bytes of each rank, in order."""
    everyones = [rank[0] / MIB for rank in gather([count], device)]
    return summarize(metric, "MiB", everyones, details=details)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors' storages, each storage counted once."""
    there = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    storages = [tensor.untyped_storage() for tensor in there]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def memory_outside(device: torch.device) -> int:
    """Bytes of a device in use outside PyTorch's allocator: libraries' buffers, symmetric memory."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
