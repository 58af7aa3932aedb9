"""A contender's turn at a training that is all its own: what shards a model cannot give it back whole."""

import torch
from torch import nn

from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.contest.agreement import available_on_all_ranks, check_memory, free_memory
from cs336_systems.benchmarks.contest.gathers import forward_rows, profile_rows
from cs336_systems.benchmarks.contest.sharded_contenders import SLACK, ShardedContender
from cs336_systems.benchmarks.contest.trial import (
    LEARNING_RATE,
    Phases,
    memory_outside,
    new_model,
    own_tokens,
    phase_rows,
    phases_of,
    run,
    slowest,
    time_steps,
)
from cs336_systems.benchmarks.contest.turns import Turn
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import in_use, most_in_use, reset_peak


class ShardedTrial:
    """The batch that all contenders train on, and their turns."""

    def __init__(self, cell: FullyShardedTraining, device: torch.device):
        self.cell = cell
        self.device = device
        self.tokens = own_tokens(cell, device)

    def turn(self, contender: ShardedContender) -> Turn:
        """Make and wrap a model, warm up, time some steps, and drop it all.

        Raises:
            Unavailable: it cannot have its turn, on any rank.
        """
        _, phases = self._start(contender)
        laps = time_steps(phases, self.device, warmup=self.cell.warmup, steps=self.cell.steps)
        seconds = slowest(laps, self.device)
        return Turn(seconds=seconds, peak=most_in_use(self.device), outside=memory_outside(self.device))

    def inspect(self, contender: ShardedContender) -> list[Measurement]:
        """What else there is to know about a contender, from a turn that is not timed as a whole.

        Raises:
            Unavailable: it cannot have its turn, on any rank.
        """
        wrapped, phases = self._start(contender)
        for _ in range(self.cell.warmup):
            run(phases)
        details = contender.details
        rows = phase_rows(phases, self.device, details)
        if self.device.type != "cuda":
            return rows
        rows += profile_rows(phases, self.device, details)
        wrapped.zero_grad()
        rows.append(summarize("between_steps", "MiB", [in_use(self.device) / MIB], details=details))
        if units := contender.units(wrapped):
            rows += forward_rows(phases["forward"], units, self.device, details)
        return rows

    def _start(self, contender: ShardedContender) -> tuple[nn.Module, Phases]:
        """A wrapped model, and the phases of its step."""
        free_memory(self.device)
        check_memory(round(SLACK * contender.needed), self.device)
        model = new_model(self.cell, self.device)
        wrapped = available_on_all_ranks(lambda: contender.wrap(model))
        optimizer = contender.optimizer(wrapped.parameters(), lr=LEARNING_RATE, fused=True)
        precision = self.cell.precision if contender.autocasts else "fp32"
        phases = phases_of(wrapped, self.tokens, precision, optimizer)
        reset_peak(self.device)
        return wrapped, phases
