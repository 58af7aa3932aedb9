"""Timeline of a sharded forward pass: when weights are gathered, and when each unit needs them."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from cs336_systems.benchmarks.comparison.profile import profile_step
from cs336_systems.benchmarks.comparison.training import Training
from cs336_systems.measure.intervals import covered
from cs336_systems.measure.overlap import ALL_GATHER, COMPUTE, DeviceEvent, collective_of, kind_of, overlap
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.record.measurement import Measurement, summarize

MARK = "spin_kernel"
"""Part of the name of the kernel that only `mark` launches."""


def units_of(training: Training) -> list[nn.Module]:
    """List the modules whose weights are gathered separately, in the order of the forward pass."""
    if isinstance(training.wrapped, FullyShardedDataParallel):
        return list(training.wrapped.units)
    return [module for module in training.wrapped.modules() if isinstance(module, FSDPModule)]


def forward_rows(
    forward: Callable[[], None], units: Sequence[nn.Module], device: torch.device, details: Mapping[str, str]
) -> list[Measurement]:
    """Measure the all-gathers of a forward pass on a CUDA device, and when it is ready for each unit and starts it.

    Marks on the device before and after each wait for a unit's weights cost some microseconds.
    """
    hooks = [
        unit.register_forward_pre_hook(mark, prepend=first)  # the first one before the hook that waits
        for unit in units
        for first in (True, False)
    ]
    profile = profile_step({"forward": forward}, device)
    for hook in hooks:
        hook.remove()
    return describe_forward(profile.events, profile.milliseconds, len(units), details)


def describe_forward(
    events: Sequence[DeviceEvent], milliseconds: float, units: int, details: Mapping[str, str]
) -> list[Measurement]:
    """Make the rows of a forward pass, without rows of each all-gather if their number differs from the units'.

    When the device is ready for the last unit, weights may already be re-gathered for the backward pass.
    """
    gathers = sorted((event.start, event.end) for event in events if collective_of(event.name) == ALL_GATHER)
    marks = sorted(event.start for event in events if MARK in event.name)
    computing = [
        (event.start, event.end) for event in events if kind_of(event.name) == COMPUTE and MARK not in event.name
    ]
    series: dict[str, list[float]] = {
        "forward_length": [milliseconds],
        "forward_gathers": [covered(gathers)],
        "forward_hidden": [overlap(computing, gathers)],
    }
    for_forward, for_backward = gathers[:units], gathers[units:]
    if len(marks) == 2 * units and len(for_forward) == units and all(start >= marks[-2] for start, _ in for_backward):
        series["gather_begins"] = [start for start, _ in for_forward]
        series["gather_ends"] = [end for _, end in for_forward]
        series["needed"], series["begins"] = marks[::2], marks[1::2]
    return [summarize(metric, "ms", samples, details=details) for metric, samples in series.items()]


def mark(*_: object) -> None:
    """Launch an empty kernel with a recognizable name."""
    torch.cuda._sleep(1)
