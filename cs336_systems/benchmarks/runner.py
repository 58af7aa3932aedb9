"""Measure an experiment's cells one after another, each from the same seed and from empty memory.

A reason why a cell cannot be measured is a result; a bug is an exception.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.gpu_monitor import GpuMonitor
from cs336_systems.measure.memory import Unavailable, is_out_of_memory, release
from cs336_systems.record.measurement import WALL, WHOLE_CELL, Measurement, Status, summarize

E = TypeVar("E", bound=Experiment)
Measure = Callable[[E, torch.device], list[Measurement]]
"""Function that measures one cell on a device. It may raise `Unavailable`, run out of memory, or fail to compile."""


def measure_cells(
    cells: Sequence[E], measure: Measure[E], device: torch.device, seed: int
) -> Iterator[tuple[E, list[Measurement]]]:
    """Measure each cell; nothing of a cell stays in memory when the next one begins."""
    # fp32 means fp32: no rounding of matrix multiplies' inputs to TF32.
    torch.set_float32_matmul_precision("highest")
    if rehearsal := cells[0].rehearsal(cells[0]):
        measure_alone(measure, rehearsal, device, seed)
    for cell in cells:
        start = time.perf_counter()
        with GpuMonitor(device) as monitor:
            measurements = measure_alone(measure, cell, device, seed)
        seconds = time.perf_counter() - start
        yield cell, [*measurements, *monitor.measurements(), summarize(WALL, "s", [seconds])]


def measure_alone(measure: Measure[E], cell: E, device: torch.device, seed: int) -> list[Measurement]:
    """Measure a cell from a fresh seed, or explain why not; its memory is freed afterwards."""
    torch.manual_seed(seed)
    measurements = measure_or_explain(measure, cell, device)
    release(device)
    return measurements


def measure_or_explain(measure: Measure[E], cell: E, device: torch.device) -> list[Measurement]:
    """Measure a cell, or return the single row that says why it could not be measured.

    Only outcomes that are results are caught: out of memory, a missing device or tool, a failing compiler.
    """
    try:
        return measure(cell, device)
    except Unavailable as error:
        return [Measurement(metric=WHOLE_CELL, status="skipped", message=str(error))]
    except (RuntimeError, MemoryError) as error:
        in_compiler = is_compiler_failure(error)
        # The compiler's own out-of-memory reaches us wrapped.
        if is_out_of_memory(error) or (in_compiler and is_out_of_memory(error.__cause__)):
            status: Status = "oom"
        elif in_compiler:
            status = "failed"
        else:
            raise
        return [Measurement(metric=WHOLE_CELL, status=status, message=first_line(error))]


def is_compiler_failure(error: BaseException) -> bool:
    """Whether an exception means that torch.compile, or a tool that it needs, failed."""
    # Imported only if there is something to explain: it takes a second, which experiments that compile nothing save.
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return isinstance(error, (TorchDynamoException, CppCompileError, InvalidCxxCompiler))


def first_line(error: BaseException) -> str:
    """The first two sentences of an error's first line; an allocator's second sentence says how much it requested."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ". ".join(line.split(". ")[:2])[:300]
