"""What contenders' turns come to as rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.measurement import Measurement, summarize


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a contender's turn in one round has shown."""

    seconds: list[float]
    """Of each timed step, by the slowest rank."""
    peak: int
    """The most bytes that this rank's allocator had in use; 0 on a CPU."""
    outside: int
    """Bytes of this rank's device that are in use, but not the allocator's; 0 on a CPU."""


def summarize_turns(
    turns: Sequence[Turn],
    floor: Sequence[Turn],
    experiment: type[Experiment],
    device: torch.device,
    details: Mapping[str, str],
) -> Iterator[Measurement]:
    """Time of a contender's steps, and their memory, where an experiment does not look at it moment by moment.

    What they take outside of the allocator is told above what the floor does.
    """
    yield summarize("step", "ms", [1e3 * lap for turn in turns for lap in turn.seconds], details=details)
    if device.type == "cuda" and "outside_memory" in experiment.metrics:
        # Of the first round: what a library allocates once and keeps is everyone's, the floor's too, from then on.
        yield summarize("peak_memory", "MiB", [turns[0].peak / MIB], details=details)
        if floor and turns is not floor:
            outside = max(turns[0].outside - floor[0].outside, 0)
            yield summarize("outside_memory", "MiB", [outside / MIB], details=details)


def not_known(
    experiment: type[Experiment], metric: str, why: str, details: Mapping[str, str] | None = None
) -> Measurement:
    """The one row that says why there are no others."""
    unit = experiment.metrics[metric]
    return Measurement(metric=metric, unit=unit, status="skipped", message=why, details=details or {})
