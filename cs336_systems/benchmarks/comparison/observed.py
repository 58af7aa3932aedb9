"""Observation of one step of a contender at the timed size, compared with its declaration.

PyTorch's dispatcher reports every collective and every operator before its kernel, in libraries and in this project, in
C++ and in Python. The observation is removed before steps are timed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_systems.accounting.contenders import COPY_SLACK, PART_OF_STEP, Collectives, differences
from cs336_systems.benchmarks.comparison.agreement import first_of_all_ranks
from cs336_systems.benchmarks.comparison.gradients import sample_weights, some_stay
from cs336_systems.benchmarks.comparison.messages import Messages
from cs336_systems.benchmarks.comparison.training import Phases, Training, run
from cs336_systems.experiments.contender import Declared
from cs336_systems.measure.memory import Unavailable
from cs336_systems.record.measurement import Measurement, summarize

STEPS_BEFORE = 2
"""Steps before the observed one: in its second step PyTorch's wrapper rebuilds its buckets, and ours knows the order of
layers."""
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Names of collectives by the prefix of their operator's name, without underscores."""
LEAST = {"optimizer_sharding": 1.95, "fsdp": 1.9}
"""Minimum number of times that ranks sharing state send the bytes of all weights, by experiment: gradients, and updated
weights. Small weights may be on every rank."""
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided")
UPDATES = ("_fused_adamw_", "_foreach_add_")
"""Operators of the optimizer and its step count; ranks that shard it run fewer of them."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Observations of one step."""

    collectives: Collectives
    """Collectives of floating-point data; flags for existing gradients are not counted."""
    tokens: int
    written: int
    """Bytes that PyTorch's operators wrote, without the optimizer's update."""
    recorded: tuple[int, int] | None
    """Number and bytes of messages in PyTorch's flight recorder, or None."""
    weights_stay: bool
    """Whether a weight has not changed on some rank."""

    @property
    def sent(self) -> tuple[float, float]:
        """Number of all collectives, and their bytes."""
        return sum(count for count, _ in self.collectives.values()), sum(size for _, size in self.collectives.values())


class Watch(TorchDispatchMode):
    """Counts collectives and written bytes while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.part = ""
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # The operators that it consists of come here next.
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "aten":
            if func._opname not in (*ALLOCATIONS, *UPDATES):
                self.written += written_by(func, args, kwargs, result)
        elif func.namespace in ("c10d", "_c10d_functional"):
            self._note(func._opname, [*args, *kwargs.values(), result])
        return result

    def _note(self, name: str, values: list[Any]) -> None:
        bare = name.replace("_", "")
        what = next((what for begins, what in COLLECTIVES.items() if bare.startswith(begins)), name)
        if sizes := [size for value in values if (size := bytes_of(value))]:
            self.calls[self.part, what] += 1
            self.bytes[self.part, what] += max(sizes)


def bytes_of(value: Any) -> int:
    """Bytes of the floating-point tensors in an argument, a result, or a list of these."""
    return sum(x.nbytes for x in tree_leaves(value) if isinstance(x, Tensor) and x.is_floating_point())


def written_by(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes of an operator's modified arguments, and of its results that are not views."""
    schema = func._schema
    results = result if len(schema.returns) > 1 else (result,)
    given = [*args, *(kwargs.get(argument.name) for argument in schema.arguments[len(args) :])]
    changed = [value for argument, value in zip(schema.arguments, given, strict=True) if writes(argument)]
    made = [value for returned, value in zip(schema.returns, results, strict=False) if returned.alias_info is None]
    return bytes_of([changed, made])


def writes(argument: Any) -> bool:
    """Whether an operator changes an argument."""
    return argument.alias_info is not None and argument.alias_info.is_write


def watched(phases: Phases) -> Watch:
    """Count in one step, call by call: PyTorch would not run compiled code here, nor in any later step."""
    with torch.compiler.set_stance("force_eager"), Watch() as watch:
        for name, phase in phases.items():
            watch.part = PART_OF_STEP[name]
            phase()
    return watch


def observe(training: Training, device: torch.device) -> Observed:
    """Observe one step of a training run, after some warm-up steps. All ranks call it."""
    for _ in range(STEPS_BEFORE):
        run(training.careful)
    tokens: list[int] = []
    hook = training.model.register_forward_pre_hook(
        lambda _, inputs, named: tokens.append(tree_leaves([inputs, named])[0].numel()), with_kwargs=True
    )
    before = sample_weights(training.wrapped)
    messages = Messages() if training.own else None
    watch = watched(training.careful)
    recorded = messages.count() if messages else None
    hook.remove()
    return Observed(
        collectives={key: (calls, watch.bytes[key]) for key, calls in watch.calls.items()},
        tokens=sum(tokens),
        written=watch.written,
        recorded=recorded,
        weights_stay=some_stay(before, sample_weights(training.wrapped), device),
    )


class Observer:
    """Observes each contender once, and rejects contenders that deviate from their declaration."""

    def __init__(self, cell: Any, gradient_bytes: int, device: torch.device, alone: Watch | None):
        """Prepare to observe the contenders of a cell.

        `alone` are observations of a single rank's step; without memory for it, copies are not counted.
        """
        self.cell = cell
        self.gradient_bytes = gradient_bytes
        self.device = device
        self.alone = alone
        self.observed: dict[Declared, Observed] = {}

    def check(self, contender: Declared, training: Training) -> None:
        """Observe a contender in its first turn. All ranks call it.

        All raise Unavailable if the contender deviates from its declaration on any; other contenders continue.
        """
        if contender in self.observed:
            return
        observed = observe(training, self.device)
        if why := first_of_all_ranks(next(self._faults(contender, observed), "")):
            raise Unavailable(f"not timed: {why}")
        self.observed[contender] = observed

    def _faults(self, contender: Declared, observed: Observed) -> Iterator[str]:
        cell = self.cell
        if (tokens := cell.batch_size * cell.context) != observed.tokens:
            yield f"its model sees {observed.tokens} tokens in a step, but the batch has {tokens}"
        if observed.weights_stay:
            yield "it does not change the weights"
        rounded = 0.5 if cell.precision == "bf16" and not contender.autocasts else 1.0
        has_known_size = self.alone is not None or cell.model == type(cell).model
        least = LEAST.get(cell.name, 0.0) * rounded * self.gradient_bytes
        if contender.own and has_known_size and (sent := observed.sent[1]) < least:
            yield f"it sends {sent / 1e6:.3g} MB in a step; gradients and weights are at least {least / 1e6:.3g} MB"
        declared = contender.sends(cell)
        if contender.own or (cell.model != type(cell).model and declared):
            return  # It declares nothing, or the closed forms are for this project's model.
        yield from (f"it sends {difference}" for difference in differences(declared, observed.collectives))
        if self.alone is not None:
            copies = (observed.written - self.alone.written) / self.gradient_bytes
            if copies > contender.copies + COPY_SLACK:
                yield f"it writes all gradients {copies:.1f} additional times; declared: {contender.copies:g}"

    def rows(self, contender: Declared, details: Mapping[str, str]) -> Iterator[Measurement]:
        """Make the rows of a contender's observations on this rank."""
        observed = self.observed[contender]
        each = {f"{part} {what}": numbers for (part, what), numbers in observed.collectives.items()}
        for kind, (count, size) in {"": observed.sent, **each}.items():
            named = {**details, **({"kind": kind} if kind else {})}
            yield summarize("collectives", "", [count], details=named)
            yield summarize("collective_bytes", "B", [size], details=named)
        yield summarize("tokens", "", [observed.tokens], details=details)
        yield summarize("written", "B", [observed.written], details=details)
