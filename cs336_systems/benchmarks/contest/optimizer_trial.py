"""The training that contenders with optimizers of their own take turns at: each turn begins with a new model."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch._dynamo  # or an optimizer's first use of it would keep the frame that made the optimizer, with the model
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.contest.agreement import (
    available_on_all_ranks,
    check_memory,
    fits_on_all_ranks,
    free_memory,
)
from cs336_systems.benchmarks.contest.observed import Phases, Watch, Witness, watched
from cs336_systems.benchmarks.contest.optimizers import Contender
from cs336_systems.benchmarks.contest.profile import profile_step
from cs336_systems.benchmarks.contest.small_training import HYPERPARAMETERS, require_same_training
from cs336_systems.benchmarks.contest.trial import (
    LEARNING_RATE,
    everyones_tokens,
    new_model,
    own_part,
    phase_rows,
    phases_of,
    run,
    slowest,
    time_steps,
)
from cs336_systems.experiments.optimizer_sharding import MOMENTS, OptimizerSharding
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import in_use, most_in_use, reset_peak
from cs336_systems.measure.timing import synchronize
from cs336_systems.parallel.gather import gather
from cs336_systems.parallel.peer_memory_optimizer import PeerMemoryShardedOptimizer

INITIALIZED, BEFORE_UPDATE, AFTER_UPDATE = MOMENTS


class Training:
    """A model that a contender trains."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, phases: Phases):
        self.model = model
        self.optimizer = optimizer
        self.phases = phases

    @property
    def outside(self) -> int:
        """Bytes that the allocator does not count."""
        return self.optimizer.peer_bytes if isinstance(self.optimizer, PeerMemoryShardedOptimizer) else 0

    def held(self) -> dict[str, int]:
        """Bytes of the storages of parameters, gradients and this rank's optimizer state."""
        parameters = list(self.model.parameters())
        # PyTorch's keeps the state in an optimizer of its own.
        states = getattr(self.optimizer, "optim", self.optimizer).state.values()
        return {
            "parameters": storage_bytes(parameters),
            "gradients": storage_bytes(p.grad for p in parameters if p.grad is not None),
            "optimizer_state": storage_bytes(
                value for state in states for value in state.values() if isinstance(value, Tensor)
            ),
        }


class OptimizerTrial:
    """The training, and a contender's turn at it."""

    def __init__(self, cell: OptimizerSharding, device: torch.device):
        """Make a batch for each rank, and see what a step takes without communication.

        Raises:
            MemoryError: on all ranks, if that does not fit on any.
        """
        self.cell = cell
        self.device = device
        self.tokens = own_part(everyones_tokens(cell, device))
        self.step_bytes, self.gradient_bytes, alone = fits_on_all_ranks(self._rehearse, device)
        self.witness = Witness(cell, self.gradient_bytes, device, alone=alone)

    def _rehearse(self) -> tuple[int, int, Watch]:
        """The memory of some steps, with the state of all parameters: the most in use, and that of the gradients.

        Besides, what the last step does: that of a rank by itself.
        """
        before = in_use(self.device)
        reset_peak(self.device)
        model = new_model(self.cell, self.device)
        training = self._training(model, self.tokens, model, AdamW(model.parameters(), fused=True))
        run(training.phases)  # In the first one's passes the state is not there yet.
        watch = watched(training.phases)
        return most_in_use(self.device) - before, training.held()["gradients"], watch

    def check(self, contender: Contender) -> None:
        """Have a contender train a small model, and one process.

        Raises:
            Unavailable: on all ranks, if it cannot be made, or is a library's, and they end with different weights.
            AssertionError: on all ranks, if it is this project's, and they do.
        """

        def start(model: nn.Module, tokens: Tensor) -> tuple[Phases, Callable[[], Mapping[str, Tensor]]]:
            made = available_on_all_ranks(lambda: contender.make(model, **HYPERPARAMETERS))
            phases = self._training(model, tokens, *made).phases
            return phases, lambda: {name: weight.detach() for name, weight in model.named_parameters()}

        require_same_training(start, self.cell, self.device, alone=False, foreign=contender.foreign)

    def turn(self, contender: Contender) -> list[float]:
        """A contender's turn: seconds of each timed step, by the slowest rank.

        Raises:
            Unavailable: it cannot have its turn, on any rank, or does something else than it declares.
        """
        self._make_room(contender)
        training = self.start(contender)
        details = {"contender": contender.name}
        self.witness.see(details, training.model, training.phases)
        seconds = time_steps(training.phases, self.device, warmup=self.cell.warmup, steps=self.cell.steps)
        return slowest(seconds, self.device)

    def inspect(self, contender: Contender) -> list[Measurement]:
        """A contender's memory, its phases and, on a GPU, a profile.

        Raises:
            Unavailable: it cannot have its turn, on any rank.
        """
        self._make_room(contender)
        base = in_use(self.device)
        reset_peak(self.device)
        training = self.start(contender)
        rows = [*self._memory(contender, training, INITIALIZED, base)]
        run(training.phases)  # From the first step on there is state.
        synchronize(self.device)
        reset_peak(self.device)
        for name, phase in training.phases.items():
            if name == "optimizer":
                rows += self._memory(contender, training, BEFORE_UPDATE, base)
            phase()
        rows += self._memory(contender, training, AFTER_UPDATE, base)
        details = {"contender": contender.name}
        rows += [*self.witness.rows(details), *phase_rows(training.phases, self.device, details)]
        if self.device.type == "cuda":
            rows += profile_step(training.phases, self.device, details)
        return rows

    def _memory(self, contender: Contender, training: Training, moment: str, base: int) -> Iterator[Measurement]:
        """What each rank has in use now, above the allocator's `base` bytes, and the most since this was last asked."""
        synchronize(self.device)
        details = {"contender": contender.name, "moment": moment}
        for part, count in training.held().items():
            yield self._on_each_rank("held", count, details | {"part": part})
        if self.device.type == "cuda":
            above = training.outside - base
            yield self._on_each_rank("allocated", in_use(self.device) + above, details)
            yield self._on_each_rank("peak_memory", most_in_use(self.device) + above, details)
            reset_peak(self.device)

    def _on_each_rank(self, metric: str, count: int, details: dict[str, str]) -> Measurement:
        everyones = [rank[0] / MIB for rank in gather([count], self.device)]
        return summarize(metric, "MiB", everyones, details=details)

    def _make_room(self, contender: Contender) -> None:
        """Free what the last turn has left.

        Raises:
            Unavailable: on all ranks, if there is not enough memory on one.
        """
        free_memory(self.device)
        check_memory(self.step_bytes + contender.copies * self.gradient_bytes, self.device)

    def start(self, contender: Contender) -> Training:
        """A new model with a contender's wrapper and optimizer."""
        model = new_model(self.cell, self.device)
        made = available_on_all_ranks(lambda: contender.make(model, lr=LEARNING_RATE, fused=True))
        return self._training(model, self.tokens, *made)

    def _training(self, model: nn.Module, tokens: Tensor, wrapped: nn.Module, optimizer: Optimizer) -> Training:
        return Training(model, optimizer, phases_of(wrapped, tokens, self.cell.precision, optimizer))


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory that tensors lie in, each piece counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
