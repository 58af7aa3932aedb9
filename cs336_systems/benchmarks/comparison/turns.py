"""Interleave contenders round by round, so that ratios stay valid on a machine that slows down.

A contender is checked before its first turn, and rejected if its results are wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.memory import Unavailable
from cs336_systems.record.measurement import Measurement, summarize

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Results of a contender's turn in one round."""

    seconds: list[float]
    """Times of each step on the slowest rank."""
    peak: int
    """Peak bytes in use of this rank's allocator; 0 on a CPU."""
    outside: int
    """Bytes of this rank's device in use outside the allocator; 0 on a CPU."""


def take_turns(
    contenders: Iterable[C], rounds: int, check: Callable[[C], None], turn: Callable[[C], T]
) -> tuple[dict[C, list[T]], dict[C, str]]:
    """Run each contender's turns, round by round; return them, and the reasons of rejected contenders."""
    turns: dict[C, list[T]] = {contender: [] for contender in contenders}
    refused: dict[C, str] = {}
    for _ in range(rounds):
        for contender in list(turns):
            try:
                if not turns[contender]:  # Not all at once: the baseline precedes libraries' one-time allocations.
                    check(contender)
                turns[contender].append(turn(contender))
            except Unavailable as error:
                del turns[contender]
                refused[contender] = str(error)
    return turns, refused


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
