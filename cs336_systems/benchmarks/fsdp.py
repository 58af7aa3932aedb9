"""Train a language model with its state whole on every rank, and sharded in several ways, in turns.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.fsdp --size xl --precision bf16 --rounds 1
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.contest.agreement import quick_collections, together
from cs336_systems.benchmarks.contest.contenders import FLOOR
from cs336_systems.benchmarks.contest.rounds import take_turns
from cs336_systems.benchmarks.contest.sharded_contenders import ShardedContender, sharded_contenders
from cs336_systems.benchmarks.contest.sharded_trial import ShardedTrial
from cs336_systems.benchmarks.contest.trial import Turn
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import allocated
from cs336_systems.model import load_model_class


def measure(cell: FullyShardedTraining, device: torch.device) -> list[Measurement]:
    """Steps of all contenders, round by round; then, one by one, their phases and profiles."""
    trial = ShardedTrial(cell, device)
    floor, *others = sharded_contenders(cell, device)
    with quick_collections(), together():
        turns, refused = take_turns((floor, *others), cell.rounds, trial.turn)
        inspected = {contender: trial.inspect(contender) for contender in turns}
    rows = [
        row
        for contender, own in turns.items()
        for row in (*summarize_turns(contender, own, turns.get(floor, ()), device), *inspected[contender])
    ]
    if device.type != "cuda":
        rows.append(not_known("device_busy", "only a CUDA device works apart from the host"))
        rows.append(allocated("peak_memory", 0, device))
    return [*rows, *(not_known("step", why, contender.details) for contender, why in refused.items())]


def not_known(metric: str, why: str, details: Mapping[str, str] | None = None) -> Measurement:
    """The one row that says why there are no others."""
    unit = FullyShardedTraining.metrics[metric]
    return Measurement(metric=metric, unit=unit, status="skipped", message=why, details=details or {})


def summarize_turns(
    contender: ShardedContender, turns: Sequence[Turn], floor: Sequence[Turn], device: torch.device
) -> Iterator[Measurement]:
    """Time and memory of a contender's steps; what it takes outside of the allocator, above what the floor does."""
    details = contender.details
    yield summarize("step", "ms", [1e3 * lap for turn in turns for lap in turn.seconds], details=details)
    if device.type == "cuda":
        # Of the first round: what a library allocates once and keeps is everyone's from then on.
        yield summarize("peak_memory", "MiB", [turns[0].peak / MIB], details=details)
        if floor and contender.wrapper != FLOOR:
            outside = max(turns[0].outside - floor[0].outside, 0)
            yield summarize("outside_memory", "MiB", [outside / MIB], details=details)


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main

    main(FullyShardedTraining, measure, check=lambda cell: load_model_class(cell.model))
