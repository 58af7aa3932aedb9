"""A contender's turn at a training that is all its own: what shards a model cannot give it back whole."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cs336_systems.accounting.transformer import parameters
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.benchmarks.contest.agreement import available_on_all_ranks, check_memory, free_memory
from cs336_systems.benchmarks.contest.gathers import forward_rows, profile_rows
from cs336_systems.benchmarks.contest.observed import Phases, Witness
from cs336_systems.benchmarks.contest.sharded_contenders import SLACK, ShardedContender
from cs336_systems.benchmarks.contest.small_training import HYPERPARAMETERS, require_same_training
from cs336_systems.benchmarks.contest.trial import (
    LEARNING_RATE,
    everyones_tokens,
    memory_outside,
    new_model,
    own_part,
    phase_rows,
    phases_of,
    run,
    slowest,
    time_steps,
)
from cs336_systems.benchmarks.contest.turns import Turn
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import in_use, most_in_use, reset_peak
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.sizes import parse_size


class ShardedTrial:
    """The batch that all contenders train on, and their turns."""

    def __init__(self, cell: FullyShardedTraining, device: torch.device):
        self.cell = cell
        self.device = device
        self.tokens = own_part(everyones_tokens(cell, device))
        self.witness = Witness(cell, FP32_BYTES * parameters(parse_size(cell.size), cell.vocab_size), device)

    def check(self, contender: ShardedContender) -> None:
        """Have a contender train a small model, and one process.

        Raises:
            Unavailable: on all ranks, if one cannot have it, or it is a library's and they end with different weights.
            AssertionError: on all ranks, if it is this project's, and they do.
        """

        def start(model: nn.Module, tokens: Tensor) -> tuple[Phases, Callable[[], Mapping[str, Tensor]]]:
            wrapped, phases = self._train(contender, model, tokens, **HYPERPARAMETERS)
            return phases, lambda: whole_weights(wrapped)

        alone = contender.wrapper == FLOOR
        require_same_training(start, self.cell, self.device, alone=alone, foreign=contender.foreign)

    def turn(self, contender: ShardedContender) -> Turn:
        """Make and wrap a model, see what a step does, warm up, time some steps, and drop it all.

        Raises:
            Unavailable: it cannot have its turn, on any rank, or does something else than it declares.
        """
        model, _, phases = self._start(contender)
        self.witness.see(contender.details, model, phases)
        laps = time_steps(phases, self.device, warmup=self.cell.warmup, steps=self.cell.steps)
        seconds = slowest(laps, self.device)
        return Turn(seconds=seconds, peak=most_in_use(self.device), outside=memory_outside(self.device))

    def inspect(self, contender: ShardedContender) -> list[Measurement]:
        """What else there is to know about a contender, from a turn that is not timed as a whole.

        Raises:
            Unavailable: it cannot have its turn, on any rank.
        """
        _, wrapped, phases = self._start(contender)
        for _ in range(self.cell.warmup):
            run(phases)
        details = contender.details
        rows = [*self.witness.rows(details), *phase_rows(phases, self.device, details)]
        if self.device.type != "cuda":
            return rows
        rows += profile_rows(phases, self.device, details)
        wrapped.zero_grad()
        rows.append(summarize("between_steps", "MiB", [in_use(self.device) / MIB], details=details))
        if units := contender.units(wrapped):
            rows += forward_rows(phases["forward"], units, self.device, details)
        return rows

    def _start(self, contender: ShardedContender) -> tuple[nn.Module, nn.Module, Phases]:
        """A model, the same wrapped, and the phases of its step."""
        free_memory(self.device)
        check_memory(round(SLACK * contender.needed), self.device)
        model = new_model(self.cell, self.device)
        wrapped, phases = self._train(contender, model, self.tokens, lr=LEARNING_RATE, fused=True)
        reset_peak(self.device)
        return model, wrapped, phases

    def _train(
        self, contender: ShardedContender, model: nn.Module, tokens: Tensor, **hyperparameters: Any
    ) -> tuple[nn.Module, Phases]:
        wrapped = available_on_all_ranks(lambda: contender.wrap(model))
        optimizer = contender.optimizer(wrapped.parameters(), **hyperparameters)
        precision = self.cell.precision if contender.autocasts else "fp32"
        return wrapped, phases_of(wrapped, tokens, precision, optimizer)


def whole_weights(wrapped: nn.Module) -> Mapping[str, Tensor]:
    """The weights of a model that a contender has wrapped, whole, by their names in the model. All ranks call it."""
    if isinstance(wrapped, FullyShardedDataParallel):
        return wrapped.gather_full_parameters()
    named = {name.removeprefix("module."): weight.detach() for name, weight in wrapped.named_parameters()}
    return {name: weight.full_tensor() if isinstance(weight, DTensor) else weight for name, weight in named.items()}
