"""Train a language model with its state whole on every rank, and sharded in several ways, in turns.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.fsdp --size xl --precision bf16 --rounds 1
"""

import torch

from cs336_systems.benchmarks.contest.agreement import quick_collections, together
from cs336_systems.benchmarks.contest.rounds import take_turns
from cs336_systems.benchmarks.contest.sharded_contenders import sharded_contenders
from cs336_systems.benchmarks.contest.sharded_trial import ShardedTrial
from cs336_systems.benchmarks.contest.turns import not_known, summarize_turns
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.memory import allocated
from cs336_systems.model import load_model_class


def measure(cell: FullyShardedTraining, device: torch.device) -> list[Measurement]:
    """Steps of all contenders, round by round; then, one by one, their phases and profiles."""
    trial = ShardedTrial(cell, device)
    floor, *others = sharded_contenders(cell, device)
    with quick_collections(), together():
        turns, refused = take_turns((floor, *others), cell.rounds, trial.check, trial.turn)
        inspected = {contender: trial.inspect(contender) for contender in turns}
    rows = [
        row
        for contender, own in turns.items()
        for row in (*summarize_turns(own, turns.get(floor, ()), device, contender.details), *inspected[contender])
    ]
    if device.type != "cuda":
        rows.append(not_known(FullyShardedTraining, "device_busy", "only a CUDA device works apart from the host"))
        rows.append(allocated("peak_memory", 0, device))
    return [
        *rows,
        *(not_known(FullyShardedTraining, "step", why, contender.details) for contender, why in refused.items()),
    ]


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main
    from cs336_systems.model_check import check_model

    main(FullyShardedTraining, measure, check=lambda cell: check_model(cell.model, load=load_model_class))
