"""A contender's turn at a training that is all its own: what shards a model cannot give it back whole."""

import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.contest.agreement import available_on_all_ranks, check_memory, free_memory
from cs336_systems.benchmarks.contest.gathers import forward_rows, profile_rows
from cs336_systems.benchmarks.contest.sharded_contenders import SLACK, ShardedContender
from cs336_systems.benchmarks.contest.trial import (
    LEARNING_RATE,
    Phases,
    Turn,
    memory_outside,
    phase_rows,
    run,
    slowest,
    time_steps,
)
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import in_use, most_in_use, reset_peak
from cs336_systems.model import build_model
from cs336_systems.parallel.data_parallel import DataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep


class ShardedTrial:
    """The batch that all contenders train on, and their turns."""

    def __init__(self, cell: FullyShardedTraining, device: torch.device):
        self.cell = cell
        self.device = device
        shape = (cell.processes * cell.batch_size, cell.context + 1)
        everyones = torch.randint(cell.vocab_size, shape, device=device)
        self.tokens = everyones.chunk(cell.processes)[dist.get_rank()]

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
        """A wrapped model, and the phases of its step; PyTorch's has none of its own for synchronization."""
        free_memory(self.device)
        check_memory(round(SLACK * contender.needed), self.device)
        cell = self.cell
        model = build_model(
            cell.model,
            parse_size(cell.size),
            vocab_size=cell.vocab_size,
            context_length=cell.context,
            device=self.device,
        )
        wrapped = available_on_all_ranks(lambda: contender.wrap(model))
        optimizer = contender.optimizer(wrapped.parameters(), lr=LEARNING_RATE, fused=True)
        precision = cell.precision if contender.autocasts else "fp32"
        phases = TrainingStep(wrapped, self.tokens, precision=precision, optimizer=optimizer).phases("train_step")
        if isinstance(wrapped, DataParallel | FullyShardedDataParallel):
            update = phases.pop("optimizer")
            phases |= {"synchronization": wrapped.finish_gradient_synchronization, "optimizer": update}
        reset_peak(self.device)
        return wrapped, phases
