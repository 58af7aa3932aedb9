"""A user's timed steps are compared with a reference: losses and weights must match.

Each timed step has another batch, drawn in place from a seed that code under test cannot know. After the step, outside
the timed region, its loss, its messages and some elements of each weight are recorded. Afterwards this project's
plainest contender trains the same model on the same batches, without any of the user's code.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cs336_systems.benchmarks.comparison.gradients import relative, sample_weights
from cs336_systems.benchmarks.comparison.messages import Messages
from cs336_systems.benchmarks.comparison.training import Training
from cs336_systems.experiments.contender import BUILDERS, Declared
from cs336_systems.measure.memory import most_in_use, reset_peak

REPLICATED = Declared(name="reference", title="reference", builder=f"{BUILDERS}.ours:naive", scheme="data parallel")
SHARDED = Declared(
    name="reference",
    title="reference",
    builder=f"{BUILDERS}.ours:fsdp",
    scheme="FSDP",
    by_block=False,
    autocasts=False,
)
SAMPLES = 1000
"""Number of elements compared per weight."""
LOSS_TOLERANCE = {"fp32": 2.0**-20, "bf16": 2.0**-9}
"""Allowed relative errors of a step's loss that is an fp32 number."""
WEIGHT_TOLERANCE = {"fp32": 2.0**-9, "bf16": 2.0**-4}
"""Allowed relative errors of a step's update of each weight, or in bf16 of all weights together: AdamW's update is
roughly the sign of a gradient, which rounding to bf16 may change."""


class NewBatches:
    """Token ids drawn in place from a secret seed."""

    def __init__(self, tokens: Tensor, vocab_size: int):
        self.tokens = tokens
        self.vocab_size = vocab_size
        self._seed = secrets.randbits(62)
        self.rewind()

    def rewind(self) -> None:
        """Start with the first batch again."""
        self._generator = torch.Generator(self.tokens.device).manual_seed(self._seed)
        self.draw()

    def draw(self) -> None:
        """Write the next batch."""
        self.tokens.random_(self.vocab_size, generator=self._generator)
        self._drawn = self.tokens.clone()

    def changed(self) -> bool:
        """Whether other code has written to the batch."""
        return not torch.equal(self.tokens, self._drawn)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Results of a timed step."""

    loss: Tensor
    weights: dict[str, Tensor]
    sent: tuple[int, int] | None
    """Number and bytes of its messages, if they were counted."""
    fault: str
    """A fault that needs no comparison, in words, or an empty string."""


class Notes:
    """Results of a training run's timed steps."""

    def __init__(self, training: Training, batches: NewBatches, places: Tensor, *, reads: bool, counts: bool):
        """Prepare the records of a training run.

        `places` are [SAMPLES] positions in each weight, as fractions of its length. Weights are read if there is memory
        for it (`reads`), and messages are counted if asked for (`counts`).
        """
        self._training = training
        self._batches = batches
        self._places = places
        self._reads = reads
        self._messages = Messages() if counts else None
        self.begin: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        self.peak = 0
        """Peak bytes in use, without reading weights."""

    def before(self) -> None:
        """Prepare the next step."""
        self._note_peak()
        if not self.steps:
            self.begin = self._read()
        self._batches.draw()
        if self._messages:
            self._messages.restart()

    def after(self) -> None:
        """Record the results of a step."""
        self._note_peak()
        sent = self._messages.count() if self._messages else None
        changed, there = self._batches.changed(), sample_weights(self._training.wrapped)
        weights, loss, fault = self._read(), self._training.step.loss, ""
        assert loss is not None, "a step was run"
        if changed:
            fault = "it changes its inputs"
        elif not all(map(torch.equal, there, sample_weights(self._training.wrapped))):
            fault = "it updates weights when they are read, after the step"
        elif type(loss) is not Tensor:
            fault = f"its loss is of type {type(loss).__name__}; allowed: Tensor"
        self.steps.append(Step(loss=loss.detach().cpu(), weights=weights, sent=sent, fault=fault))

    def faults(self, observed: tuple[int, int] | None) -> Iterator[str]:
        """Describe faults that need no reference; `observed` is the expected number and bytes of messages."""
        for number, step in enumerate(self.steps, start=1):
            if step.fault:
                yield step.fault
            yield from fault_of_messages(f"timed step {number}", step.sent, observed)

    def close(self) -> None:
        """Drop the training run."""
        del self._training

    def _note_peak(self) -> None:
        self.peak = max(self.peak, most_in_use(self._places.device))

    def _read(self) -> dict[str, Tensor]:
        """Read some elements of each weight into host memory, in fp64."""
        weights = self._training.whole_weights() if self._reads else {}
        names, samples = [*weights], [*map(self._sample, weights.values())]
        del weights
        on_host = torch.stack(samples).cpu() if samples else ()
        reset_peak(self._places.device)
        return dict(zip(names, on_host, strict=True))

    def _sample(self, weight: Tensor) -> Tensor:
        return weight.detach().flatten()[(self._places * weight.numel()).long()].double()


def places_of(device: torch.device) -> Tensor:
    """Draw the positions of samples, unknown to code under test."""
    generator = torch.Generator(device).manual_seed(secrets.randbits(62))
    return torch.rand(SAMPLES, dtype=torch.float64, generator=generator, device=device)


def reference_of(contender: Declared) -> Declared:
    """The reference for a contender's training."""
    return SHARDED if contender.scheme == "FSDP" else REPLICATED


def differences(notes: Notes, right: Notes, precision: str) -> Iterator[str]:
    """Describe how losses and weights of a user's timed steps differ from the reference."""
    before, there = notes.begin, right.begin
    for number, (mine, step) in enumerate(zip(notes.steps, right.steps, strict=True), start=1):
        error = abs(float(mine.loss) - float(step.loss)) / abs(float(step.loss))
        # `fully_shard` computes the loss in bf16, rounded to its neighbour.
        rounding = torch.finfo(mine.loss.dtype).eps if precision == "bf16" else 0
        if not error <= (limit := max(LOSS_TOLERANCE[precision], rounding)):
            yield f"the loss of timed step {number} has a relative error of {error:.2g} (tolerance {limit:.1g})"
        if missing := next((name for name in step.weights if name not in mine.weights or name not in before), ""):
            yield f"it has no {missing} after timed step {number}"
            return
        moved = {name: weight - there[name] for name, weight in step.weights.items()}
        off = {name: mine.weights[name] - before[name] - moved[name] for name in moved}
        for name, error in relative_errors(off, moved, precision):
            if not error <= (limit := WEIGHT_TOLERANCE[precision]):
                where = f"{name} in timed step {number}"
                yield f"the change of {where} has a relative error of {error:.2g} (tolerance {limit:.1g})"
        before, there = mine.weights, step.weights


def relative_errors(
    off: Mapping[str, Tensor], whole: Mapping[str, Tensor], precision: str
) -> Iterator[tuple[str, float]]:
    """Compute the relative error of each weight, or in bf16 of all together."""
    if precision == "fp32":
        yield from ((name, relative(error, whole[name])) for name, error in off.items())
    elif off:
        yield "all weights", relative(torch.cat([*off.values()]), torch.cat([*whole.values()]))


def fault_of_messages(step: str, sent: tuple[int, int] | None, observed: tuple[int, int] | None) -> Iterator[str]:
    """Describe a timed step that sends less than the observed one."""
    if observed is None:
        return
    if sent is None:
        yield f"the messages of {step} cannot be counted: too many"
    elif any(now < then for now, then in zip(sent, observed, strict=True)):
        now, then = (f"{count} messages of {size / 1e6:.3g} MB" for count, size in (sent, observed))
        yield f"it sends {now} in {step}, but {then} in the observed one"


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the random generators that models use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


@contextlib.contextmanager
def random_numbers(state: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    """Draw the numbers that follow a saved state; afterwards the current state continues."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(state[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(state[1], device)
        yield
