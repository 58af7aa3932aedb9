"""Record training steps with PyTorch's profiler: the device's kernels, labelled with the modules that launched them."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule

from cs336_systems.measure.memory import Unavailable
from cs336_systems.measure.profiler import profiling
from cs336_systems.measure.timing import no_garbage_collection, synchronize
from cs336_systems.measure.trace import ON_DEVICE, read_events
from cs336_systems.ranges import listening, named_range

COMPILED, WHOLE_MODEL = "compiled", "model"
"""The range of a compiled model, whose modules are no longer visible, and of a model's work outside its modules."""


@no_garbage_collection()
def run_steps(
    stages: Mapping[str, Callable[[], None]], steps: int, device: torch.device
) -> tuple[list[float], dict[str, list[float]]]:
    """Run the stages of a step, step after step; the device is idle when a stage begins, and each is a named range.

    Returns milliseconds of each step on the host's clock, and of each stage between two events of the device; on a CPU
    on the host's clock.
    """
    by_step: list[float] = []
    by_stage: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(steps):
        synchronize(device)
        begin = time.perf_counter()
        for name, stage in stages.items():
            start = _now(device)
            with named_range(name):
                stage()
            end = _now(device)
            synchronize(device)
            by_stage[name].append(_milliseconds(start, end))
        by_step.append(1e3 * (time.perf_counter() - begin))
    return by_step, by_stage


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _milliseconds(start: Any, end: Any) -> float:
    return 1e3 * (end - start) if isinstance(start, float) else start.elapsed_time(end)


@contextlib.contextmanager
def recording(model: Callable[..., Any], device: torch.device, path: Path) -> Iterator[None]:
    """Record the enclosed code as a Chrome trace, compressed if the path ends in .gz.

    Calls of the model's modules are named ranges; a model from `torch.compile` is a single range.
    """
    prepare_profiler(device)
    with module_ranges(model), listening(), profiling(device, operators=True) as profiler:
        yield
    profiler.export_chrome_trace(str(path))


def recorded_events(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """Read the events that `recording` wrote; Unavailable is raised if there is no kernel of the device."""
    events = read_events(path)
    if device.type == "cuda" and not any(event.get("cat") in ON_DEVICE for event in events):
        raise Unavailable("PyTorch's profiler recorded no kernel")
    return events


@cache  # The first profile of a process takes a second longer than others: it loads and starts CUPTI.
def prepare_profiler(device: torch.device) -> None:
    """Make a profile and discard it."""
    with profiling(device, operators=True) as profiler:
        torch.zeros(1, device=device).add_(1)
    with TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")


@contextlib.contextmanager
def module_ranges(model: Callable[..., Any]) -> Iterator[None]:
    """Turn each module's forward pass into a named range; numbered siblings share a name.

    Hooks inside a compiled model would break its graph: it is one range as a whole.
    """
    assert isinstance(model, nn.Module), "its calls can be seen"
    names = {COMPILED: model} if isinstance(model, OptimizedModule) else dict(model.named_modules())
    handles = []
    for name, module in names.items():
        enter, leave = _hooks(range_name(name))
        handles += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),  # even if it raises, as in checkpointing
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def range_name(module: str) -> str:
    """Name the range of a module, from its qualified name.

    >>> range_name("blocks.3.attention.query")
    'blocks.attention.query'
    """
    return ".".join(part for part in module.split(".") if not part.isdigit()) or WHOLE_MODEL


def _hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    entered: list[contextlib.AbstractContextManager[object]] = []

    def enter(*_: object) -> None:
        entered.append(named_range(name))
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    return enter, leave
