"""Whether a training configuration fits into a GPU's memory, and how long its step takes, each with the closed form's
error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cs336_systems.accounting.peak_memory import Use, peak, possible_peaks
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_work import KERNELS, step_work
from cs336_systems.compare.speed import host_bound
from cs336_systems.fit.gpus import memory_of, rates_of
from cs336_systems.fit.parameters import Question
from cs336_systems.fit.recorded import MEMORY_WITHIN, Error, Recorded, expected_error, kind, recorded
from cs336_systems.fit.strategies import strategies
from cs336_systems.measure.gpus import gpu_of, listed

CONTEXT = 600 * 2**20
"""Approximate bytes of a CUDA context with PyTorch's kernels and cuBLAS."""
COLLECTIVES = 1700 * 2**20
"""Bytes of NCCL's buffers; with them 148.4 of an H200's 150.8 GB are free before training on two."""
GAPS = 0.03
"""Share of the memory that gaps between the allocator's blocks may leave unusable."""

Outcome = Literal["fits", "tight", "does not fit"]
"""tight: it cannot be decided within the closed form's error and the allocator's gaps."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One training configuration."""

    way: str
    kind: str
    """The kind of step for which its errors are recorded."""
    outcome: Outcome
    memory: Use
    outside: int
    """Bytes outside PyTorch's allocator: CUDA's context, NCCL's buffers."""
    memory_error: Error | None
    """Error of recorded steps of its kind; None if there are none."""
    seconds: float
    """Expected time of a step."""
    time_error: Error | None
    host_seconds: float
    """Approximate time in which the host launches the step; if it is longer, `seconds` is a lower bound."""
    at_least: bool = False
    """Whether the memory is a lower bound: what convolutions need while they run is not predicted."""

    @property
    def total(self) -> int:
        """Bytes of a GPU's memory."""
        return self.memory.total + self.outside

    @property
    def host_bound(self) -> bool:
        """Whether the step is likely host-bound."""
        return bool(host_bound(max(self.host_seconds, self.seconds), self.seconds))


def outside(ranks: int) -> int:
    """Bytes outside PyTorch's allocator."""
    return CONTEXT + (COLLECTIVES if ranks > 1 else 0)


def outcome(setting: Setting, capacity: float) -> Outcome:
    """Whether it fits into `capacity` bytes."""
    peaks = [use.total for use in possible_peaks(setting)]
    error = expected_error(setting, recorded().memory_errors)
    return outcome_of(peaks, max(MEMORY_WITHIN, error.most if error else 0.0), outside(setting.ranks), capacity)


def outcome_of(peaks: Sequence[int], error: float, rest: int, capacity: float) -> Outcome:
    """Whether the possible peaks, known within an error, fit with `rest` bytes outside the allocator."""
    if (1 - error) * min(peaks) + rest > capacity:
        return "does not fit"
    if (1 + error) * max(peaks) + rest > (1 - GAPS) * capacity:
        return "tight"
    return "fits"


def predict(question: Question) -> Iterator[Prediction]:
    """Predict each training configuration of the handout's model, in order."""
    gpu, known = listed(question.gpu), errors_on(question.gpu)
    capacity, rates = memory_of(gpu), rates_of(gpu)
    room = (1 - GAPS) * capacity / (1 + MEMORY_WITHIN) - outside(question.gpus)
    for way, setting in strategies(question, room):
        yield Prediction(
            way=way,
            kind=kind(setting),
            outcome=outcome(setting, capacity),
            memory=peak(setting),
            outside=outside(setting.ranks),
            memory_error=expected_error(setting, known.memory_errors),
            seconds=step_work(setting, rates).seconds(known.weights),
            time_error=expected_error(setting, known.time_errors),
            host_seconds=launches(setting) * known.launch_seconds,
        )


def launches(setting: Setting) -> int:
    """Approximate number of kernels that the host launches one by one; zero for a step in a CUDA graph."""
    if setting.graph:
        return 0
    forward, backward = KERNELS[setting.passes]
    runs = 2 if setting.segment else 1
    return setting.shape.num_layers * (runs * forward + backward)


def recorded_on(gpu: str) -> bool:
    """Whether the time model was fitted to this GPU model."""
    return gpu_of(gpu) is gpu_of(recorded().gpu)


def errors_on(gpu: str) -> Recorded:
    """The recorded errors on a GPU model, or else on the one to which the time model was fitted."""
    known = {gpu_of(each.gpu): each for each in (recorded(), *recorded().others)}
    return known.get(gpu_of(gpu), recorded())
