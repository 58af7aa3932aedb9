"""Compute and communication of a feed-forward layer against the number of devices it is spread over."""

import math
from collections.abc import Callable

from matplotlib.axes import Axes
from numpy import geomspace

from cs336_systems.accounting.parallelism import Times
from scripts.rendering.style import COLOURS, MARKERS, annotate, legend, powers, save, subplots
from scripts.views.parallelism import EXAMPLE

COMPUTE, COMMUNICATION, IN_TURN = COLOURS[0], COLOURS[1], COLOURS[3]
FORWARD, BACKWARD, TURNS = "-", "--", ":"


def draw(output: str) -> None:
    """One panel per strategy; a mark where communication overtakes compute."""
    figure, (batch, tensor, mixed) = subplots(3, 3.0)
    batch.set_title("data parallel and FSDP")
    passes(batch, EXAMPLE.fsdp_forward, EXAMPLE.data_parallel_backward, (EXAMPLE.batch_limit, EXAMPLE.batch_limit))
    tensor.set_title("tensor parallel")
    limits = EXAMPLE.tensor_forward_limit, EXAMPLE.tensor_backward_limit
    passes(tensor, EXAMPLE.tensor_forward, EXAMPLE.tensor_backward, limits)
    mixed.set_title("FSDP + tensor, forward")
    best_splits(mixed)
    for axes in (batch, tensor, mixed):
        powers(axes.xaxis)
        powers(axes.yaxis)
        axes.minorticks_off()
        axes.set_xlabel("devices")
    batch.set_ylabel("time of a pass / s")
    legend([batch, tensor, mixed], ncols=2)
    save(figure, output)


def passes(
    axes: Axes,
    forward: Callable[[float], Times],
    backward: Callable[[float], Times],
    limits: tuple[float, float],
) -> None:
    """Both passes of a strategy of one axis, as far as four times the larger limit."""
    devices = geomspace(1.2, 4 * max(limits), 200)
    names, looks = ("forward", "backward"), (FORWARD, BACKWARD)
    for name, times, look, limit in zip(names, (forward, backward), looks, limits, strict=True):
        found = [times(count) for count in devices]
        axes.plot(devices, [each.compute for each in found], look, color=COMPUTE, label=f"compute, {name}")
        axes.plot(
            devices, [each.communication for each in found], look, color=COMMUNICATION, label=f"communication, {name}"
        )
        mark(axes, limit, times(limit).compute, above=look == BACKWARD)


def best_splits(axes: Axes) -> None:
    """The best split of any number of devices, with overlapping collectives and with one after the other."""
    devices = geomspace(1.2, 4 * EXAMPLE.mixed_limit(overlapped=True), 200)
    for overlapped, look, colour, name in (
        (True, FORWARD, COMMUNICATION, "communication, forward"),
        (False, TURNS, IN_TURN, "communication, forward, axes in turn"),
    ):
        found = [best_split(count, overlapped=overlapped) for count in devices]
        axes.plot(devices, [each.communication for each in found], look, color=colour, label=name)
        limit = EXAMPLE.mixed_limit(overlapped=overlapped)
        mark(axes, limit, best_split(limit, overlapped=overlapped).compute, above=not overlapped)
    axes.plot(devices, [each.compute for each in found], FORWARD, color=COMPUTE, label="compute, forward")


def best_split(devices: float, *, overlapped: bool) -> Times:
    """The times of the best split of a number of devices."""
    fsdp = EXAMPLE.best_fsdp(devices, overlapped=overlapped)
    return EXAMPLE.mixed_forward(fsdp, devices / fsdp, overlapped=overlapped)


def mark(axes: Axes, devices: float, seconds: float, *, above: bool) -> None:
    """The number of devices at which communication is as long as compute."""
    axes.plot([devices], [seconds], MARKERS[0], color="black")
    number = f"{math.floor(devices):,}".replace(",", "\u202f")
    place, side = ((3, 5), "left") if above else ((-3, -10), "right")
    annotate(axes, (devices, seconds), number, xytext=place, ha=side, fontsize=7.5)
