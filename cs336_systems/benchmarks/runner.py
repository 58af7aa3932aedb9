"""Measure an experiment's cells one after another, each from the same seed and from empty memory.

A reason why a cell cannot be measured is a result; a bug is an exception.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psutil
import torch

from cs336_systems.attention.chip import kernel_obstacle
from cs336_systems.experiments.base import Experiment
from cs336_systems.fit.planned import exceeds
from cs336_systems.measure.gpu_state import GpuState
from cs336_systems.measure.memory import Unavailable, is_out_of_memory, release
from cs336_systems.nvidia import uuid
from cs336_systems.record.measurement import WALL, WHOLE_CELL, Measurement, Status, summarize

E = TypeVar("E", bound=Experiment)
Measure = Callable[[E, torch.device], list[Measurement]]
"""Function that measures one cell on a device. It may raise `Unavailable`, run out of memory, or fail to compile."""
COMPILER_ERRORS = {
    "torch._dynamo.exc.TorchDynamoException",
    "torch._inductor.exc.CppCompileError",
    "torch._inductor.exc.InvalidCxxCompiler",
    "torch._inductor.runtime.triton_heuristics.NoTritonConfigsError",
    "triton.compiler.errors.CompilationError",
    "triton.runtime.errors.AutotunerError",
    "triton.runtime.errors.OutOfResources",
    "triton.runtime.errors.PTXASError",
}
"""Names of the exceptions of compilers, by which they are recognized without importing a compiler. OutOfResources: the
compiled kernel does not fit the GPU."""
COMPILER_MESSAGES = ("PassManager::run failed", "ptxas", "Failed to find C compiler")
"""Parts of the messages of plain RuntimeErrors by which Triton reports that a compiler failed."""


class CompilerFailure(RuntimeError):
    """Raised on all ranks if a compiler failed on one; its text is the reason."""


def measure_cells(
    cells: Sequence[E], measure: Measure[E], device: torch.device, seed: int
) -> Iterator[tuple[E, list[Measurement]]]:
    """Measure each cell; nothing of a cell stays in memory when the next one starts."""
    # fp32 means fp32: no rounding of matmul inputs to TF32, although PyTorch's compiler recommends it.
    torch.set_float32_matmul_precision("highest")
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled on the fly")  # its choice, for our shapes
    warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")  # warm-up is not captured
    if rehearsal := cells[0].rehearsal(cells[0]):
        measure_alone(measure, rehearsal, device, seed)
    for cell in cells:
        start = time.perf_counter()
        with GpuState(uuid(device)) as monitor:
            measurements = measure_alone(measure, cell, device, seed)
        seconds = time.perf_counter() - start
        yield cell, [*measurements, *monitor.measurements(), summarize(WALL, "s", [seconds])]


def measure_alone(measure: Measure[E], cell: E, device: torch.device, seed: int) -> list[Measurement]:
    """Measure a cell from a fresh seed, or report why not; its memory is freed afterwards."""
    torch.manual_seed(seed)
    measurements = measure_or_explain(measure, cell, device)
    release(device)
    return measurements


def require_kernels(device: torch.device) -> None:
    """Raise Unavailable if a GPU cannot run this project's attention: no fallback may be measured under its name."""
    if device.type == "cuda" and (obstacle := kernel_obstacle(device)):
        raise Unavailable(f"this project's kernels do not run here: {obstacle}")


def require_memory(cell: Experiment, device: torch.device) -> None:
    """Raise a MemoryError if a CPU cannot hold a cell's step: Linux grants more memory, and later ends the process."""
    if device.type == "cpu" and (why := exceeds(psutil.virtual_memory().total, cell, "this machine")):
        raise MemoryError(why)


def measure_or_explain(measure: Measure[E], cell: E, device: torch.device) -> list[Measurement]:
    """Measure a cell, or return the single row that says why it could not be measured."""

    def rows() -> list[Measurement]:
        if getattr(cell, "attention", "") == "flash":
            require_kernels(device)
        require_memory(cell, device)
        return measure(cell, device)

    return rows_or_reason(rows, WHOLE_CELL)


def rows_or_reason(
    measure: Callable[[], Iterable[Measurement]], metric: str, unit: str = "", details: Mapping[str, str] | None = None
) -> list[Measurement]:
    """Measure, or return a single row of a metric that says why that is impossible; bugs are raised."""
    try:
        return list(measure())
    except Exception as error:
        if (status := status_of(error)) is None:
            raise
        message = reason_of(error)
    return [Measurement(metric=metric, unit=unit, status=status, message=message, details=details or {})]


def status_of(error: BaseException) -> Status | None:
    """The status of a row that an exception explains; None for a bug."""
    if isinstance(error, Unavailable):
        return "skipped"
    in_compiler = is_compiler_failure(error)
    # The compiler's out-of-memory error arrives wrapped.
    if is_out_of_memory(error) or (in_compiler and is_out_of_memory(error.__cause__)):
        return "oom"
    return "failed" if in_compiler else None


def is_compiler_failure(error: BaseException) -> bool:
    """Whether an exception means that a compiler or a tool it needs failed, or that its kernel does not fit."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if isinstance(error, CompilerFailure) or not names.isdisjoint(COMPILER_ERRORS):
        return True
    return type(error) is RuntimeError and any(part in str(error) for part in COMPILER_MESSAGES)


def reason_of(error: BaseException) -> str:
    """Describe in one or two sentences why something could not be measured."""
    cause: Any = getattr(error, "inner_exception", error)  # torch.compile wraps the compiler's exception
    if type(cause).__name__ == "OutOfResources" and is_compiler_failure(cause):
        unit = "bytes of " if "memory" in cause.name else ""
        return f"a kernel needs {cause.required} {unit}{cause.name}, and this GPU has {cause.limit}"
    if type(cause).__module__ == "triton.compiler.errors":  # Its first lines quote the kernel.
        *_, last = (str(cause.__cause__ or "") or str(cause)).strip().splitlines()
        return f"a kernel does not compile: {last}"[:300]
    return first_line(cause)


def first_line(error: BaseException) -> str:
    """The first two sentences of an error's first line; an allocator's second sentence says how much it requested."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ". ".join(line.split(". ")[:2])[:300]
