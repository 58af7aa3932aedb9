"""The training that all contenders take over in turn: one model, one optimizer, one batch per rank."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # or an optimizer's first use of it would keep the frame that made the optimizer, with the model
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_systems.benchmarks.contest.agreement import fits_on_all_ranks, free_memory, wrap_on_all_ranks
from cs336_systems.benchmarks.contest.contenders import Contender
from cs336_systems.benchmarks.contest.gradients import (
    GradientErrors,
    differ_among_ranks,
    gradient_errors,
    own_gradients,
    sample_weights,
    some_stay,
)
from cs336_systems.benchmarks.contest.observed import Phases, Witness
from cs336_systems.benchmarks.contest.profile import profile_step
from cs336_systems.benchmarks.contest.refusal import refuse
from cs336_systems.benchmarks.contest.turns import Turn
from cs336_systems.experiments.data_parallel import PHASE_STEPS, DataParallelTraining
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import Unavailable, in_use, most_in_use, reset_peak
from cs336_systems.measure.timing import Stopwatch, no_garbage_collection, synchronize
from cs336_systems.model import build_model
from cs336_systems.parallel.buckets import MB
from cs336_systems.parallel.gather import gather
from cs336_systems.parallel.variations import Bf16WireDataParallel
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import TrainingStep

STEPS_BEFORE_CAPTURE = 11
"""PyTorch's wrapper looks at events of its first ten steps, which a capture forbids."""
STEPS_BEFORE_CHECK = 2
"""At its second step PyTorch's wrapper rebuilds its buckets."""
LEARNING_RATE = 1e-6
"""So small that hundreds of steps on one batch leave weights and gradients about as large as they were."""


class Trial:
    """The training, and a contender's turn at it."""

    def __init__(self, cell: DataParallelTraining, device: torch.device):
        """Build the model, the same on all ranks, and train it for a step, without communication.

        Raises:
            MemoryError: on all ranks, if that does not fit on any.
            Unavailable: the model has no blocks to compile.
        """
        self.cell = cell
        self.device = device
        self.errors: dict[Contender, GradientErrors] = {}
        self.replays = cell.compiled and device.type == "cuda"
        if self.replays:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # On the default one nothing can be captured.
        reset_peak(device)
        self.model, self.tokens, self.optimizer = fits_on_all_ranks(self._start, device)
        self.gradient_bytes = sum(parameter.nbytes for parameter in self.model.parameters() if parameter.requires_grad)
        self.step_bytes = most_in_use(device) - in_use(device)
        self.witness = Witness(cell, self.gradient_bytes, device)

    def _start(self) -> tuple[nn.Module, Tensor, Optimizer]:
        cell = self.cell
        model = new_model(cell, self.device)
        if cell.compiled:
            # Before there are wrappers: within its own forward pass PyTorch's would cut graphs at its buckets' ends.
            compile_blocks(model)
        tokens = own_part(everyones_tokens(cell, self.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True, capturable=self.replays)
        run(TrainingStep(model, tokens, precision=cell.precision, optimizer=optimizer).phases("train_step"))
        model.zero_grad()
        return model, tokens, optimizer

    def check(self, contender: Contender) -> None:
        """See that all ranks begin with the same weights, that a step's gradients are the mean of those that ranks make
        alone, and that it updates the weights. The floor's gradients are its own.

        Raises:
            Unavailable: it cannot have its turn, on any rank, or does something else than it declares.
        """
        wrapped = self._wrap(contender, beside=self.gradient_bytes)
        communicates = wrapped is not self.model
        if communicates and differ_among_ranks(sample_weights(self.model)):
            refuse("ranks begin with different weights", foreign=contender.foreign)
        phases = self._timed(contender, wrapped)
        for _ in range(STEPS_BEFORE_CHECK):
            run(phases)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):  # the step draws the same
            own = own_gradients(self.model, self.tokens, self.cell.precision)
        before = sample_weights(self.model)
        run(phases)
        after = sample_weights(self.model)
        errors = self.errors[contender] = gradient_errors(self.model, own, averaged=communicates)
        if not errors.worst <= contender.tolerance:
            why = f"its gradient of {errors.name} is off from the mean over the ranks by {errors.worst:.1g} of it"
            refuse(why, foreign=contender.foreign)
        if some_stay(before, after, self.device):
            refuse("it leaves weights as they are", foreign=contender.foreign)

    def turn(self, contender: Contender) -> Turn:
        """A contender's turn: wrap the model, see what a step does, warm up, time some, and drop the wrapper.

        Raises:
            Unavailable: it cannot have its turn, on any rank, or does something else than it declares.
        """
        wrapped = self._wrap(contender)
        phases = self._phases(contender, wrapped)
        self.witness.see(contender.details, self.model, phases)
        phases = self._as_timed(phases)
        seconds = slowest(time_steps(phases, self.device, warmup=self.cell.warmup, steps=self.cell.steps), self.device)
        return Turn(seconds=seconds, peak=most_in_use(self.device), outside=memory_outside(self.device))

    def inspect(self, contender: Contender) -> list[Measurement]:
        """What else there is to know about a contender, from a turn that is not timed as a whole.

        Raises:
            Unavailable: it cannot have its turn, on any rank.
        """
        wrapped = self._wrap(contender)
        phases = self._phases(contender, wrapped)
        for _ in range(self.cell.warmup):
            run(phases)
        details = contender.details
        rows = [*self.witness.rows(details), *phase_rows(phases, self.device, details)]
        if self.device.type == "cuda":
            rows += profile_step(self._timed(contender, wrapped), self.device, details)
        if wrapped is not self.model:
            sent = contender.sent * self.gradient_bytes / MB
            rows.append(summarize("communicated", "MB", [sent], details=details))
        if (messages := getattr(wrapped, "messages", None)) is not None:
            rows.append(summarize("messages", "", [messages], details=details))
        if isinstance(wrapped, Bf16WireDataParallel):
            rows.append(summarize("gradient_error", "", [self.errors[contender].overall], details=details))
        return rows

    def _wrap(self, contender: Contender, beside: int = 0) -> nn.Module:
        """The model wrapped, if besides the step there is so much memory."""
        self.model.zero_grad()
        free_memory(self.device)
        reset_peak(self.device)
        return wrap_on_all_ranks(contender, self.model, self.gradient_bytes, self.step_bytes + beside)

    def _phases(self, contender: Contender, wrapped: nn.Module) -> Phases:
        """The phases of a contender's step."""
        phases = phases_of(wrapped, self.tokens, self.cell.precision, self.optimizer)
        if contender.updates:
            del phases["optimizer"]
        return phases

    def _timed(self, contender: Contender, wrapped: nn.Module) -> Phases:
        """The same as they are timed as a whole."""
        return self._as_timed(self._phases(contender, wrapped))

    def _as_timed(self, phases: Phases) -> Phases:
        """Phases as they are timed as a whole."""
        return captured(phases) if self.replays else phases


def new_model(cell: Any, device: torch.device) -> nn.Module:
    """A model with random weights, of a cell of any of the experiments that train on several ranks."""
    return build_model(
        cell.model,
        parse_size(cell.size),
        vocab_size=cell.vocab_size,
        context_length=cell.context,
        device=device,
    )


def everyones_tokens(cell: Any, device: torch.device) -> Tensor:
    """A batch that all ranks draw alike, [processes * batch_size, context + 1]."""
    return torch.randint(cell.vocab_size, (cell.processes * cell.batch_size, cell.context + 1), device=device)


def own_part(tokens: Tensor) -> Tensor:
    """This rank's part of everyone's tokens, [batch_size, context + 1]."""
    return tokens.chunk(dist.get_world_size())[dist.get_rank()]


def phases_of(
    wrapped: nn.Module, tokens: Tensor, precision: str, optimizer: Optimizer
) -> dict[str, Callable[[], None]]:
    """The phases of a training step; PyTorch's wrappers have none of their own for synchronization."""
    phases = TrainingStep(wrapped, tokens, precision=precision, optimizer=optimizer).phases("train_step")
    if finish := getattr(wrapped, "finish_gradient_synchronization", None):
        update = phases.pop("optimizer")
        phases |= {"synchronization": finish, "optimizer": update}
    return phases


def compile_blocks(model: nn.Module) -> None:
    """Have each block compiled by itself, so that its gradients arrive when its own backward pass is over."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise Unavailable(f"{type(model).__name__} has no `blocks`, which could be compiled one by one")
    for block in blocks:
        block.compile()


def captured(phases: Phases) -> Phases:
    """The phases of a step as a single one, which replays a CUDA graph of it."""
    for _ in range(STEPS_BEFORE_CAPTURE):
        run(phases)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run(phases)
    return {"step": graph.replay}


def run(phases: Phases) -> None:
    """One step."""
    for phase in phases.values():
        phase()


def slowest(seconds: Sequence[float], device: torch.device) -> list[float]:
    """From each rank's laps to those of the slowest rank."""
    return [max(lap) for lap in zip(*gather(seconds, device), strict=True)]


@no_garbage_collection()
def time_steps(phases: Phases, device: torch.device, *, warmup: int, steps: int) -> list[float]:
    """Seconds of each timed step on this rank; all ranks begin together."""
    for _ in range(warmup):
        run(phases)
    synchronize(device)
    dist.barrier()
    stopwatch = Stopwatch(device)
    seconds = []
    for _ in range(steps):
        run(phases)
        seconds.append(stopwatch.lap())
    return seconds


def phase_rows(phases: Phases, device: torch.device, details: Mapping[str, str]) -> list[Measurement]:
    """Each phase's time, by the slowest rank."""
    return [
        summarize(name, "ms", [1e3 * lap for lap in slowest(seconds, device)], details=details)
        for name, seconds in time_phases(phases, device).items()
    ]


@no_garbage_collection()
def time_phases(phases: Phases, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each phase of some steps on this rank; all ranks begin a step together.

    A phase ends when the device has done the work on the current stream. What travels on others goes on.
    """
    seconds: dict[str, list[float]] = {name: [] for name in phases}
    for _ in range(PHASE_STEPS):
        synchronize(device)
        dist.barrier()
        for name, phase in phases.items():
            start = time.perf_counter()
            phase()
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def memory_outside(device: torch.device) -> int:
    """Bytes of a device that are in use, but not by PyTorch's allocator: libraries' buffers, memory of peers."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
