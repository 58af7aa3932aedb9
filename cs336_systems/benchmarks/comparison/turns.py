"""Turn a contender's timings into measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.record.measurement import Measurement, summarize


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Results of a contender's turn in one round."""

    seconds: list[float]
    """Times of each step on the slowest rank."""
    peak: int
    """Peak bytes in use of this rank's allocator; 0 on a CPU."""
    outside: int
    """Bytes of this rank's device in use outside the allocator; 0 on a CPU."""


def summarize_turns(
    turns: Sequence[Turn],
    baseline: Sequence[Turn],
    experiment: type[Experiment],
    device: torch.device,
    details: Mapping[str, str],
) -> Iterator[Measurement]:
    """Summarize times of a contender's steps and, unless the experiment measures it by moments, their memory.

    Memory outside the allocator is counted relative to the no-communication baseline.
    """
    yield summarize("step", "ms", [1e3 * lap for turn in turns for lap in turn.seconds], details=details)
    if device.type == "cuda" and "outside_memory" in experiment.metrics:
        # From the first round: later, a library's one-time allocations count for every contender, including the
        # baseline.
        yield summarize("peak_memory", "MiB", [turns[0].peak / MIB], details=details)
        if baseline and turns is not baseline:
            outside = max(turns[0].outside - baseline[0].outside, 0)
            yield summarize("outside_memory", "MiB", [outside / MIB], details=details)


def not_known(
    experiment: type[Experiment], metric: str, why: str, details: Mapping[str, str] | None = None
) -> Measurement:
    """Make the single row with the reason why there are no others."""
    unit = experiment.metrics[metric]
    return Measurement(metric=metric, unit=unit, status="skipped", message=why, details=details or {})
