"""Parameters of the data-parallel training experiment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import AfterValidator

from cs336_systems.accounting.contenders import (
    PART_OF_STEP,
    PASSES,
    SYNCHRONIZATION,
    at_once,
    ddp,
    in_buckets,
    one_by_one,
    to_peers,
)
from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import ModelClass, ModelExperiment, NonNegative, Positive, Size
from cs336_systems.experiments.contender import BUILDERS, Declared, contender_settings, names_of, ours, pytorchs
from cs336_systems.implementations import parse_all

PHASE_STEPS = 3
"""Number of steps whose phases are timed."""
HOST_STEPS = 10
"""Number of steps whose issue time on the host is measured."""
TIMELINE_PARTS = 200
"""Number of equal parts of a step; the timeline has the device's busy share of each."""
WORK = ("compute", "communication", "optimizer")
"""The kinds of work in a profiled step."""
PARTS = tuple(dict.fromkeys(PART_OF_STEP.values()))
"""Prefixes of the kinds of collectives: the part of the step to which each belongs."""
PHASES = ("forward", "backward", "synchronization", "optimizer")
BASELINE = "none"
"""The no-communication baseline: each rank trains alone."""
BUCKETS_MB = (1, 10, 100, 1000)
DDP_MB = 25
"""PyTorch's default; its sizes are MiB."""
DDP_VIEW_MB = (25, 100, 400)
PEER_MB = (100, 400)


_ours = partial(ours, scheme="data parallel")


def _in_buckets(name: str, title: str, megabytes: int, **traits: Any) -> Declared:
    """Declare a wrapper with buckets."""
    common = {"bucket_mb": megabytes, "sends": in_buckets(megabytes), "copies": 1}
    return _ours(name, title, **common | traits)


def _ddp(name: str, title: str, mebibytes: int, *, tuned: bool = True) -> Declared:
    """Declare DistributedDataParallel. By default it broadcasts buffers, and copies gradients out of its buckets."""
    sends, copies = ddp(mebibytes, broadcasts=not tuned), 1 if tuned else 2
    return pytorchs(name, title, scheme="data parallel", bucket_mb=mebibytes, sends=sends, copies=copies)


CONTENDERS = (
    _ours(BASELINE, "no communication", builder=f"{BUILDERS}.ours:alone", scheme="alone"),
    _ours("naive", "naive", sends=one_by_one(SYNCHRONIZATION)),
    _ours("flat", "flat", sends=at_once, copies=1),
    _ours("overlapped", "overlapped", sends=one_by_one(PASSES)),
    *(_in_buckets("bucketed", "bucketed", mb) for mb in BUCKETS_MB),
    # To the owner and back, half of it each; copies into messages, and the means.
    *(_in_buckets("symmetric_memory", "symmetric memory", mb, sends=to_peers(mb), copies=4) for mb in PEER_MB),
    _ddp("ddp", "PyTorch DDP", DDP_MB, tuned=False),
    # At its best: a static graph, gradients that are views of the buckets, and no broadcasts of buffers.
    *(_ddp("ddp_view", "PyTorch DDP, view", mb) for mb in DDP_VIEW_MB),
)
"""All contenders, in the order of tables."""


def own_next_to(contenders: Sequence[Declared]) -> AfterValidator:
    """Make the validator of own implementations: none may have another contender's name."""

    def check(text: str) -> str:
        for own in parse_all(text):
            if own.name in (taken := names_of(contenders)):
                raise ValueError(f"implementation is {text!r}; allowed: other names than {', '.join(taken)}")
        return text

    return AfterValidator(check)


@dataclass(frozen=True, kw_only=True)
class TrainingOnRanks(ModelExperiment):
    """Parameters of a cell in which contenders train a model on several ranks."""

    contenders: ClassVar[tuple[Declared, ...]]
    replays: ClassVar[bool] = False
    """Whether a step whose blocks are compiled is replayed from a CUDA graph on a GPU."""
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "rounds", "warmup", "steps", "model")
    added_later: ClassVar[Mapping[str, Any]] = {"implementation": ""}

    size: Size = "xl"
    batch_size: Positive = 4
    """Sequences per process."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 autocast over fp32 weights, whose gradients are fp32."""
    processes: Annotated[int, Ge(2)] = 2  # type: ignore[misc]  # a class variable of experiments that do not vary it
    """Processes that train together, one per GPU if there are GPUs."""
    rounds: Positive = 2
    """Rounds of interleaved contenders, each with a new model and optimizer."""
    warmup: NonNegative = 2
    """Steps of each turn before timing begins, in which optimizers create their state, PyTorch's wrapper rebuilds its
    buckets, and our FSDP records the order of layers."""
    steps: Positive = 4
    """Steps timed in each turn."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments works. Compiling it,
    or sharding it by block, requires its blocks in `blocks`."""

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step of each contender."""
        return contender_settings(self)

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """Count samples: one per timed step, per timed phase, and per part of the timeline."""
        planned = {"step": cell.rounds * cell.steps, "timeline": TIMELINE_PARTS, "host": HOST_STEPS}
        planned |= dict.fromkeys(PHASES, PHASE_STEPS)
        return planned.get(metric)


@dataclass(frozen=True, kw_only=True)
class DataParallelTraining(TrainingOnRanks):
    """Train a Transformer language model with each data-parallel wrapper, and measure the cost of communication."""

    name: ClassVar[str] = "data_parallel"
    details: ClassVar[tuple[str, ...]] = ("wrapper", "bucket_mb", "kind")
    contenders: ClassVar[tuple[Declared, ...]] = CONTENDERS
    replays: ClassVar[bool] = True
    vocabulary: ClassVar[Mapping[str, Sequence[str]]] = {
        "wrapper": names_of(CONTENDERS),
        "kind": (*WORK, *PARTS),
    }
    """Allowed values, or prefixes, of these columns; validation reads it from every experiment."""
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "parallel.test_compiled",
        "parallel.test_data_parallel",
        "verify.test_ours",
    )
    tested_if: ClassVar[Mapping[str, str]] = {"parallel.test_compiled": "compiled"}

    compiled: bool = False
    """Whether each Transformer block is compiled separately, so that gradients arrive block by block. On a GPU the
    whole step is then replayed from a CUDA graph, which makes it device-bound."""
    implementation: Annotated[str, own_next_to(CONTENDERS)] = ""
    """Your own wrappers to compare, as NAME=package.module:name, separated by commas. Each is called with the module,
    and with bucket_size_mb=100 if it accepts that; finish_gradient_synchronization() follows the backward pass."""
