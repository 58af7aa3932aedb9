"""Turns of contenders that train on several ranks, each with a new model."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from cs336_systems.accounting.contenders import gradients
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.comparison.agreement import (
    OwnCodeRaises,
    first_of_all_ranks,
    fits_on_all_ranks,
    free_memory,
)
from cs336_systems.benchmarks.comparison.gathers import forward_rows, units_of
from cs336_systems.benchmarks.comparison.gradients import (
    differ_among_ranks,
    largest_error,
    own_gradients,
    sample_weights,
    some_stay,
)
from cs336_systems.benchmarks.comparison.memory import memory_outside, memory_rows
from cs336_systems.benchmarks.comparison.observed import STEPS_BEFORE, Observer, Watch, watched
from cs336_systems.benchmarks.comparison.profile import median_profile, profile_rows
from cs336_systems.benchmarks.comparison.reference import (
    NewBatches,
    Notes,
    differences,
    places_of,
    random_numbers,
    random_state,
    reference_of,
)
from cs336_systems.benchmarks.comparison.refusal import refuse
from cs336_systems.benchmarks.comparison.small_training import EVEN_VOCABULARY, not_ours, require_same_training
from cs336_systems.benchmarks.comparison.timing import captured, host_row, phase_rows, time_steps
from cs336_systems.benchmarks.comparison.training import (
    Phases,
    Training,
    everyones_tokens,
    new_model,
    own_part,
    run,
    start,
)
from cs336_systems.benchmarks.comparison.turns import Turn
from cs336_systems.benchmarks.ranks import check_memory, gather, slowest
from cs336_systems.experiments.contender import BUILDERS, Declared
from cs336_systems.experiments.data_parallel import BASELINE
from cs336_systems.measure.memory import Unavailable, in_use, most_in_use, reset_peak
from cs336_systems.measure.overlap import ALL_GATHER, REDUCE_SCATTER
from cs336_systems.parallel.buckets import MB
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.training import compile_blocks

SLACK = 1.05
"""Factor for libraries' workspaces and the allocator's fragmentation."""
STEPS_BEFORE_CHECK = 2
"""Steps before the check: PyTorch's wrapper rebuilds its buckets in its second step."""
TOLERANCE = 2.0**-10
"""The allowed error of a gradient, relative to the mean over the ranks. Wrong gradients are off by far more; another
order of additions by less."""
PROFILED_STEPS = 3
"""Steps that are profiled; the one with the median duration counts."""
LEARNING_RATE = 1e-6
"""Learning rate small enough that hundreds of steps on one batch hardly change the size of weights and gradients."""
ALONE = Declared(name=BASELINE, title="no communication", builder=f"{BUILDERS}.ours:alone", scheme="alone")


class ContenderRuns:
    """The common batch of a cell's contenders, and their turns.

    In addition to steps, phases and collectives, it measures all other metrics of the experiment.
    """

    def __init__(self, cell: Any, device: torch.device):
        """Draw the batch, and observe a single rank's training, if there is memory for it.

        All ranks raise a MemoryError if memory runs out unexpectedly on any, as it may with other models.
        """
        self.cell = cell
        self.device = device
        self.rounds_left: dict[Declared, int] = {}
        """Rounds of a user's contender that may still be compared with the reference."""
        self.replays = cell.replays and cell.compiled and device.type == "cuda"
        if self.replays:
            torch.cuda.set_stream(torch.cuda.Stream(device))  # Nothing can be captured on the default stream.
        self.tokens = own_part(everyones_tokens(cell, device))
        self.gradient_bytes = gradients(cell)
        try:
            self._make_room(ALONE)
        except Unavailable:
            alone = None
        else:
            alone, self.gradient_bytes = fits_on_all_ranks(self._rehearse, device)
        self.observer = Observer(cell, self.gradient_bytes, device, alone)

    def _rehearse(self) -> tuple[Watch, int]:
        """Run a single rank's step; return its observations, and the bytes of its gradients."""
        training = self._begin(ALONE)
        run(training.phases)  # The first step has no state yet.
        watch = watched(training.phases)
        return watch, sum(weight.nbytes for weight in training.model.parameters() if weight.requires_grad)

    def details(self, contender: Declared) -> dict[str, str]:
        """Detail columns of a contender's rows."""
        column, *others = self.cell.details
        sized = {"bucket_mb": "" if contender.bucket_mb is None else str(contender.bucket_mb)}
        return {column: contender.name} | (sized if "bucket_mb" in others else {})

    def check(self, contender: Declared) -> None:
        """Check a contender's training of a small model and, if it averages gradients, its gradients.

        All ranks raise Unavailable if it is unavailable on one, or incorrect; AssertionError if it is this project's.
        """
        try:
            require_same_training(contender, self.cell, self.device)
        except OwnCodeRaises:  # It may need rows divisible by the number of ranks, as at the timed sizes.
            require_same_training(contender, self.cell, self.device, vocab_size=EVEN_VOCABULARY)
        if "communicated" in self.cell.metrics:
            self._check_gradients(contender)

    def _check_gradients(self, contender: Declared) -> None:
        """Check weights at the start, gradients against the ranks' mean, and that weights change, at the timed size."""
        training = self._start(contender, spare=self.gradient_bytes)
        model, communicates = training.model, contender.name != BASELINE
        if communicates and differ_among_ranks(sample_weights(model)):
            refuse("ranks start with different weights", foreign=not_ours(contender))
        for _ in range(training.calls_before_capture if self.replays else STEPS_BEFORE_CHECK):
            run(training.phases)
        # The step draws the same numbers.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            of_rank = own_gradients(model, self.tokens, self.cell.precision)
        before = sample_weights(model)
        phases = self._as_timed(training, calls=0)  # Only now: a graph keeps its memory.
        run(phases)
        del phases  # A wrapper that ends its own NCCL group waits for the graphs that use it.
        after = sample_weights(model)
        name, worst = largest_error(model, of_rank, averaged=communicates)
        if not worst <= TOLERANCE:
            why = f"its gradient of {name} has a relative error of {worst:.2g} against the mean over the ranks"
            refuse(why, foreign=not_ours(contender))
        if some_stay(before, after, self.device):
            refuse("it does not change the weights", foreign=not_ours(contender))

    def turn(self, contender: Declared) -> Turn:
        """Run a contender's turn: build, observe a step, warm up, time some steps, and release everything.

        Raises Unavailable if it is unavailable on any rank, or deviates from its declaration.
        """
        batches = NewBatches(self.tokens, self.cell.vocab_size)
        if contender.own:
            return self._own_turn(contender, batches)
        return self._turn(contender, self._start(contender), before=batches.draw)

    def _turn(self, contender: Declared, training: Training, **around: Callable[[], None]) -> Turn:
        """Run a turn of a new training run; `around` is called before or after each timed step."""
        self.observer.check(contender, training)
        reset_peak(self.device)  # Steps are observed uncompiled.
        phases = self._as_timed(training)
        laps = time_steps(phases, self.device, warmup=self.cell.warmup, steps=self.cell.steps, **around)
        del phases  # before the wrapper, as above
        seconds = slowest(laps, self.device)
        return Turn(seconds=seconds, peak=most_in_use(self.device), outside=memory_outside(self.device))

    def _own_turn(self, contender: Declared, batches: NewBatches) -> Turn:
        """Run a turn of a user's code and, in one of its rounds, the reference's steps on the same batches.

        All ranks raise Unavailable if a timed step on one did less work than required.
        """
        drawn, places = random_state(self.device), places_of(self.device)
        reads = contender.scheme != "FSDP" or self._has_room(contender, self.gradient_bytes)
        training = self._start(contender)
        warmup = self._untimed_steps(contender, training)
        notes = Notes(training, batches, places, reads=reads, counts=not self.replays)
        turn = self._turn(contender, training, before=notes.before, after=notes.after)
        notes.close()
        del training
        faults = notes.faults(None if self.replays else self.observer.observed[contender].recorded)
        if self._is_chosen(contender):
            with random_numbers(drawn, self.device):
                batches.rewind()
                training = self._start(reference_of(contender))
                right = Notes(training, batches, places, reads=reads, counts=False)
                around = {"before": right.before, "after": right.after}
                time_steps(training.phases, self.device, warmup=warmup, steps=self.cell.steps, **around)
            faults = itertools.chain(faults, differences(notes, right, self.cell.precision))
        if why := first_of_all_ranks(next(faults, "")):
            refuse(why, foreign=True)
        return replace(turn, peak=max(notes.peak, turn.peak))

    def _is_chosen(self, contender: Declared) -> bool:
        """Choose one of a contender's rounds at random, after its steps were timed."""
        left = self.rounds_left.get(contender, self.cell.rounds)
        chosen = left > 0 and gather([secrets.randbelow(left)], self.device)[0][0] == 0
        self.rounds_left[contender] = 0 if chosen else left - 1
        return chosen

    def _untimed_steps(self, contender: Declared, training: Training) -> int:
        """Count the steps of a turn before the timed ones."""
        observed = 0 if contender in self.observer.observed else STEPS_BEFORE + 1
        return observed + (training.calls_before_capture if self.replays else 0) + self.cell.warmup

    def _has_room(self, contender: Declared, spare: int) -> bool:
        """Whether all ranks have memory for a contender's training and some extra."""
        try:
            self._make_room(contender, spare)
        except Unavailable:
            return False
        return True

    def inspect(self, contender: Declared) -> list[Measurement]:
        """Measure a contender's phases, memory and profile, in a turn without timed steps."""
        details, metrics = self.details(contender), self.cell.metrics
        free_memory(self.device)
        dist.barrier()  # PyTorch lets go of the buffers of ended collectives when the next one is called.
        base = in_use(self.device)
        training = self._start(contender, from_scratch="held" in metrics)
        rows = memory_rows(training, self.device, base, details) if "held" in metrics else []
        for _ in range(self.cell.warmup):
            run(training.careful)
        rows += self.observer.rows(contender, details)
        if "communicated" in metrics and contender.name != BASELINE:
            rows += self._messages(contender, training, details)
        rows += phase_rows(training, self.device, details, replays=self.replays)
        if self.device.type == "cuda":
            if self.replays:  # Wrappers are not designed to run eagerly again after a capture.
                del training
                training = self._start(contender)
            rows += self._on_the_device(training, details)
        return rows

    def _messages(self, contender: Declared, training: Training, details: Mapping[str, str]) -> Iterator[Measurement]:
        """Make rows of a data-parallel wrapper's messages; for a user's wrapper, as observed."""
        calls, size = self.observer.observed[contender].sent
        sent = size if contender.own else self.gradient_bytes
        messages = calls if contender.own else getattr(training.wrapped, "messages", None)
        yield summarize("communicated", "MB", [sent / MB], details=details)
        if messages is not None:
            yield summarize("messages", "", [messages], details=details)

    def _on_the_device(self, training: Training, details: Mapping[str, str]) -> Iterator[Measurement]:
        """Make rows of a GPU's work in a timed step, of the host's, and of gathering weights."""
        metrics = self.cell.metrics
        phases = self._as_timed(training)
        profile = median_profile(phases, self.device, PROFILED_STEPS)
        gathers = "gather_begins" in metrics
        yield from profile_rows(profile, details, apart=(ALL_GATHER, REDUCE_SCATTER) if gathers else ())
        if "host" in metrics:
            yield summarize("launches", "", [profile.launches], details=details)
            yield host_row(phases, self.device, details)
        if gathers:
            training.wrapped.zero_grad()
            yield summarize("between_steps", "MiB", [in_use(self.device) / MIB], details=details)
            if units := units_of(training):
                yield from forward_rows(training.phases["forward"], units, self.device, details)

    def _begin(self, contender: Declared) -> Training:
        model = new_model(self.cell, self.device)
        if getattr(self.cell, "compiled", False):
            # Done before wrapping: within its own forward pass PyTorch's wrapper would split graphs at bucket
            # boundaries.
            try:
                compile_blocks(model)
            except ValueError as error:
                raise Unavailable(str(error)) from None
        graphs = {"capturable": True} if self.replays else {}
        return start(contender, model, self.tokens, self.cell, lr=LEARNING_RATE, fused=True, **graphs)

    def _start(self, contender: Declared, *, spare: int = 0, from_scratch: bool = False) -> Training:
        """Start training if there is memory for it and some extra; the peak is counted from then on, or before."""
        self._make_room(contender, spare)
        reset_peak(self.device)
        training = self._begin(contender)
        if not from_scratch:
            reset_peak(self.device)
        return training

    def _make_room(self, contender: Declared, spare: int = 0) -> None:
        """Free leftovers of the last turn; all ranks raise Unavailable if there is too little memory on one."""
        free_memory(self.device)
        needed = contender.needed(self.cell, on_gpu=self.device.type == "cuda")
        check_memory(round(SLACK * needed) + spare, self.device)

    def _as_timed(self, training: Training, calls: int | None = None) -> Phases:
        """The phases of a training run, as they are timed as a whole: a graph is captured after some eager calls."""
        if not self.replays:
            return training.phases
        return captured(training.phases, training.calls_before_capture if calls is None else calls)
