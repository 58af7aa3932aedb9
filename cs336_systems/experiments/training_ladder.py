"""Parameters of the training ladder, and its rungs: settings of one training step, from first to fastest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import AfterValidator

from cs336_systems.accounting.setting import Setting
from cs336_systems.experiments.base import Experiment, NonNegative, Positive, Size
from cs336_systems.sizes import parse_size


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A training step in one setting."""

    name: str
    title: str
    precision: Literal["fp32", "autocast", "bf16"] = "fp32"
    """autocast: bf16 over fp32 weights; bf16: weights in bf16, with fp32 masters in the optimizer."""
    attention: Literal["plain", "flash"] = "plain"
    """flash: this project's kernels."""
    passes: Literal["eager", "compiled", "fused"] = "eager"
    """Norms, rotary embeddings and activations: op by op; blocks through torch.compile, one by one; or fused kernels,
    with packed matmuls and a chunked linear cross-entropy."""
    graph: bool = False
    """Whether the whole step is replayed from a CUDA graph."""
    overlap: bool = False
    """Whether parameters are updated during the backward pass."""
    fp8: bool = False
    """Whether the blocks' matmuls, but not the head's, compute in FP8 with delayed scaling."""
    checkpoint: bool = False
    """Whether blocks keep only their input and attention's result, and recompute the rest."""
    wrapper: Literal["", "data_parallel", "sharded_optimizer", "fsdp"] = ""
    """How several processes train one model; empty: each process has its own model."""
    without: str = ""
    """The rung that is taken out of the top; empty on the ladder itself."""

    def setting(self, parameters: Any, ranks: int = 1) -> Setting:
        """Describe the rung's step on one of several ranks, with the size and batch of a cell or a row."""
        names = ("precision", "attention", "passes", "fp8", "graph", "overlap")
        others = {name: getattr(self, name) for name in names} | dict(WRAPPERS[self.wrapper])
        recomputed = parse_size(parameters["size"]).num_layers if self.checkpoint else 0
        return Setting.of(parameters, **others, recomputed=recomputed, ranks=ranks if self.wrapper else 1)

    @property
    def apart(self) -> "Rung":
        """The same with the update after the backward pass, not captured."""
        return replace(self, graph=False, overlap=False)


WRAPPERS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "data_parallel": {"scheme": "data parallel"},
    "sharded_optimizer": {"scheme": "sharded optimizer", "overlap": True},
    "fsdp": {"scheme": "FSDP"},
}
"""How a step differs under each wrapper. The sharded optimizer's shares are updated during the backward pass."""
FIRST = Rung(name="fp32", title="fp32, eager")
_AUTOCAST = replace(FIRST, name="autocast", title="bf16 autocast", precision="autocast")
_ATTENTION = replace(_AUTOCAST, name="attention", title="our attention", attention="flash")
_MASTERS = replace(_ATTENTION, name="masters", title="bf16 weights with fp32 masters", precision="bf16")
_COMPILED = replace(_MASTERS, name="compiled", title="blocks compiled", passes="compiled")
_FUSED = replace(_MASTERS, name="fused", title="fused passes and loss", passes="fused")
_GRAPH = replace(_FUSED, name="graph", title="CUDA graph", graph=True)
TOP = replace(_GRAPH, name="overlap", title="update during backward", overlap=True)
"""The last rung, with everything that is exact."""
LADDER = (FIRST, _AUTOCAST, _ATTENTION, _MASTERS, _COMPILED, _FUSED, _GRAPH, TOP)
"""The rungs in order: each adds to the previous one; fused passes replace the compiler."""
FP8 = replace(TOP, name="fp8", title="FP8 matmuls", fp8=True)
"""Not on the ladder: its matmuls are less accurate."""
CHECKPOINT = replace(TOP, name="checkpoint", title="blocks recomputed", checkpoint=True)
"""Not on the ladder: the top in less memory."""
LEFT_OUT = (
    replace(TOP, name="no_attention", title="plain attention", attention="plain", without="attention"),
    replace(TOP, name="no_masters", title="bf16 autocast", precision="autocast", without="masters"),
    replace(TOP, name="no_fused", title="blocks compiled", passes="compiled", without="fused"),
    replace(TOP, name="no_graph", title="no CUDA graph", graph=False, without="graph"),
)
"""The top with one rung left out each; without the update during the backward pass it is the previous rung."""
_CALL_BY_CALL = replace(TOP, graph=False, overlap=False)
WRAPPED = (
    replace(_CALL_BY_CALL, name="data_parallel", title="data-parallel wrapper", wrapper="data_parallel"),
    replace(_CALL_BY_CALL, name="sharded", title="sharded optimizer", wrapper="sharded_optimizer"),
    # Shards are fp32 and gathered in bf16. A gathered weight has its own memory, so no matmuls are packed.
    replace(_COMPILED, name="fsdp", title="FSDP", precision="autocast", wrapper="fsdp"),
)
"""The fastest step of several processes under each wrapper."""
RUNGS: Mapping[str, Rung] = {rung.name: rung for rung in (*LADDER, FP8, CHECKPOINT, *LEFT_OUT, *WRAPPED)}
"""All rungs by name."""
ALONE = tuple(rung for rung in RUNGS.values() if not rung.wrapper)
"""Rungs of a single process."""
GROUPS: Mapping[str, tuple[Rung, ...]] = {
    "ladder": LADDER,
    "all": ALONE,
    "wrapped": (TOP, *WRAPPED),
}
"""Names of several rungs."""


def rungs_of(text: str) -> tuple[Rung, ...]:
    """The rungs that a cell names, in order, each once.

    >>> [rung.name for rung in rungs_of("fp32,graph")]
    ['fp32', 'graph']

    Raises:
        ValueError: no such rung exists.
    """
    by_name: dict[str, Rung] = {}
    for name in text.split(","):
        if name not in RUNGS and name not in GROUPS:
            raise ValueError(f"rungs is {text!r}; allowed, separated by commas: {', '.join([*GROUPS, *RUNGS])}")
        by_name |= {rung.name: rung for rung in GROUPS.get(name, (RUNGS.get(name, FIRST),))}
    return tuple(by_name.values())


def check_one_rung(cell: Experiment) -> None:
    """Check that a cell of the ladder has a single rung, and one process.

    Raises:
        ValueError: it has more.
    """
    if isinstance(cell, TrainingLadder):
        rungs = rungs_of(cell.rungs)
        if len(rungs) > 1 or rungs[0].wrapper:
            raise ValueError(f"rungs is {cell.rungs!r}; allowed: one of {', '.join(rung.name for rung in ALONE)}")


def _known_rungs(text: str) -> str:
    rungs_of(text)
    return text


@dataclass(frozen=True, kw_only=True)
class TrainingLadder(Experiment):
    """Time a training step from the first setting to the fastest, and its parts alone on this device."""

    name: ClassVar[str] = "training_ladder"
    details: ClassVar[tuple[str, ...]] = ("rung", "work")
    timed: ClassVar[str] = "step"
    more_help: ClassVar[Mapping[str, str]] = {
        "rungs": "; ".join(f"{name}: {', '.join(rung.name for rung in rungs)}" for name, rungs in GROUPS.items()) + "."
    }
    added_later: ClassVar[Mapping[str, Any]] = {"processes": 1}
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "attention.test_attention_gpu",
        "benchmarks.test_training_ladder",
        "benchmarks.test_wrapped_ladder",
        "parallel.test_sharded_adamw",
        "training.test_adamw",
        "training.test_captured_step",
        "training.test_checkpointing",
        "training.test_fp8",
        "training.test_fused_model",
        "training.test_linear_cross_entropy",
    )
    tested_if: ClassVar[Mapping[str, str]] = {"parallel.test_sharded_adamw": "has_fsdp", "training.test_fp8": "has_fp8"}

    size: Size = "small"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or your own shape as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    batch_size: Positive = 4
    """Sequences per batch."""
    context: Positive = 512
    """Tokens per sequence."""
    vocab_size: Positive = 10_000
    """Vocabulary size."""
    rungs: Annotated[str, AfterValidator(_known_rungs)] = "ladder"
    """Rungs to measure, or groups of them, separated by commas."""
    part: Literal["steps", "training", "processes"] = "steps"
    """steps: time each step, and a step's parts alone. training: compare gradients, and losses after training.
    processes: time steps of several processes, each on its own sequences."""
    processes: Annotated[int, Ge(1)] = 1  # type: ignore[misc]  # a class variable of experiments that do not vary it
    """Number of processes that measure together, one per GPU if there are GPUs."""
    warmup: NonNegative = 2
    """Steps run before timing begins, in addition to those before a CUDA graph is captured."""
    steps: Positive = 9
    """Steps timed on a CPU, fewer if they are slow; on a GPU a step runs until steady state. For part training, the
    number of training steps."""

    @property
    def has_fp8(self) -> bool:
        """Whether FP8 is measured."""
        return any(rung.fp8 for rung in rungs_of(self.rungs))

    @property
    def has_fsdp(self) -> bool:
        """Whether a step of sharded parameters is measured."""
        return any(rung.wrapper == "fsdp" for rung in rungs_of(self.rungs))

    def settings_of_steps(self) -> Iterator[tuple[str, Setting]]:
        """Describe the step of each rung, if steps are timed."""
        for rung in rungs_of(self.rungs) if self.part in ("steps", "processes") else ():
            yield rung.name, rung.setting(vars(self), self.processes)
