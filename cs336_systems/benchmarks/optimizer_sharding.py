"""Train a language model with sharded optimizers in turn: what each keeps in memory, and how long a step takes.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.optimizer_sharding --precision bf16
"""

from collections.abc import Iterator

import torch

from cs336_systems.benchmarks.contest.agreement import quick_collections, together
from cs336_systems.benchmarks.contest.optimizer_trial import OptimizerTrial
from cs336_systems.benchmarks.contest.optimizers import CONTENDERS
from cs336_systems.benchmarks.contest.rounds import take_turns
from cs336_systems.benchmarks.contest.turns import not_known
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import Unavailable
from cs336_systems.model import load_model_class

ON_CUDA = {
    "device_busy": "only a CUDA device works apart from the host",
    "allocated": "PyTorch counts memory in use on CUDA devices only",
    "peak_memory": "PyTorch counts peak memory on CUDA devices only",
}
"""Metrics that a CPU does not have, and why."""


def measure(cell: OptimizerSharding, device: torch.device) -> list[Measurement]:
    """Steps of all contenders, round by round; then, one by one, their memory, their phases and a profile."""
    trial = OptimizerTrial(cell, device)
    with quick_collections(), together():
        turns, refused = take_turns(CONTENDERS, cell.rounds, trial.check, trial.turn)
        if not turns:
            raise Unavailable(next(iter(refused.values())))
        inspected = [row for contender in turns for row in trial.inspect(contender)]
    steps = [
        summarize("step", "ms", [1e3 * lap for laps in own for lap in laps], details={"contender": contender.name})
        for contender, own in turns.items()
    ]
    lost = [
        not_known(OptimizerSharding, "step", why, {"contender": contender.name}) for contender, why in refused.items()
    ]
    return [*steps, *inspected, *lost, *not_on_cpu(device)]


def not_on_cpu(device: torch.device) -> Iterator[Measurement]:
    """Why a CPU lacks some metrics."""
    if device.type != "cuda":
        for metric, why in ON_CUDA.items():
            yield not_known(OptimizerSharding, metric, why)


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main
    from cs336_systems.model_check import check_model

    main(OptimizerSharding, measure, check=lambda cell: check_model(cell.model, load=load_model_class))
