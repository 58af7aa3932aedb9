"""Train a language model with each data-parallel wrapper in turn, and time what communication adds to a step.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.data_parallel --precision bf16 --rounds 1
"""

import torch

from cs336_systems.benchmarks.contest.agreement import quick_collections, together
from cs336_systems.benchmarks.contest.contenders import contenders
from cs336_systems.benchmarks.contest.rounds import take_turns
from cs336_systems.benchmarks.contest.trial import Trial
from cs336_systems.benchmarks.contest.turns import not_known, summarize_turns
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.memory import Unavailable, allocated
from cs336_systems.model import load_model_class


def measure(cell: DataParallelTraining, device: torch.device) -> list[Measurement]:
    """Steps of all contenders, round by round; then, one by one, their phases and a profile."""
    trial = Trial(cell, device)
    floor, *others = contenders(cell, trial.optimizer)
    with quick_collections(), together():
        turns, refused = take_turns((floor, *others), cell.rounds, trial.check, trial.turn)
        if floor in refused:
            raise Unavailable(refused[floor])
        inspected = {contender: trial.inspect(contender) for contender in turns}
    rows = [
        row
        for contender, own in turns.items()
        for row in (*summarize_turns(own, turns[floor], device, contender.details), *inspected[contender])
    ]
    if device.type != "cuda":
        rows.append(not_known(DataParallelTraining, "device_busy", "only a CUDA device works apart from the host"))
        rows.append(allocated("peak_memory", 0, device))
    return [
        *rows,
        *(not_known(DataParallelTraining, "step", why, contender.details) for contender, why in refused.items()),
    ]


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main
    from cs336_systems.model_check import check_model

    main(DataParallelTraining, measure, check=lambda cell: check_model(cell.model, load=load_model_class))
