"""Parameters of the experiment on fully sharded data parallelism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from cs336_systems.accounting.contenders import Declared, by_block, by_layer, fully_shard, names_of, to_peers
from cs336_systems.experiments.base import Experiment, ModelClass, NonNegative, Positive, Size
from cs336_systems.experiments.data_parallel import (
    FLOOR,
    OBSERVED_METRICS,
    PARTS,
    PROFILE_METRICS,
    STEP_METRICS,
    VARIATION_MB,
    WORK,
    planned_steps,
)

CONTENDERS = (
    Declared(name=FLOOR, title="no communication"),
    Declared(name="peer_memory", title="data parallel", sends=to_peers(VARIATION_MB), copies=4),
    Declared(name="sharded_optimizer", title="sharded optimizer", sends=to_peers(VARIATION_MB), copies=5),
    Declared(name="fsdp", title="FSDP, by layer", sends=by_layer, copies=2),
    Declared(name="fsdp_blocks", title="FSDP, by block", sends=by_block, copies=2),
    Declared(name="fully_shard", title="fully_shard", foreign=True, sends=fully_shard, copies=2),
)
"""All that take part, in the order of tables."""
COLLECTIVES = ("all_gather", "reduce_scatter")
"""The collectives that are timed apart."""


@dataclass(frozen=True, kw_only=True)
class FullyShardedTraining(Experiment):
    """Train a Transformer language model with its state on every rank or sharded, and see what gathering it costs."""

    name: ClassVar[str] = "fsdp"
    metrics: ClassVar[Mapping[str, str]] = {
        **STEP_METRICS,
        **OBSERVED_METRICS,
        **PROFILE_METRICS,
        # The same of a forward pass by itself, and its all-gathers in the order in which they run: when each begins and
        # ends, when the device is ready for what needs it, and when that begins.
        "forward_length": "ms",
        "forward_gathers": "ms",
        "forward_hidden": "ms",
        "gather_begins": "ms",
        "gather_ends": "ms",
        "needed": "ms",
        "begins": "ms",
        # On rank 0. between_steps: weights and optimizer state; outside_memory is not PyTorch's allocator's.
        "peak_memory": "MiB",
        "between_steps": "MiB",
        "outside_memory": "MiB",
    }
    details: ClassVar[tuple[str, ...]] = ("wrapper", "kind")
    contenders: ClassVar[tuple[Declared, ...]] = CONTENDERS
    vocabulary: ClassVar[Mapping[str, Sequence[str]]] = {
        "wrapper": names_of(CONTENDERS),
        "kind": (*WORK, *COLLECTIVES, *PARTS),
    }
    """As of data parallelism."""
    timed: ClassVar[str] = "step"
    settings: ClassVar[tuple[str, ...]] = ("batch_size", "vocab_size", "rounds", "warmup", "steps", "model")
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "parallel.test_fsdp",
        "parallel.test_sharded_optimizer",
        "parallel.test_ddp_equivalence",
    )

    size: Size = "2.7B"
    """Model size: a name (nano, micro, mini, small, medium, large, xl, 2.7B, 10B), or a shape of your own as
    NAME:d_model=N,d_ff=N,num_layers=N,num_heads=N."""
    context: Positive = 512
    """Tokens per sequence."""
    batch_size: Positive = 4
    """Sequences per process."""
    vocab_size: Positive = 10_000
    """Rows of the embedding and of the output head."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 compute over fp32 weights: by autocast where the weights are whole, and where they
    are sharded by gathering them, and reducing their gradients, in bf16."""
    processes: Annotated[int, Ge(2)] = 2  # type: ignore[misc]  # a class variable of experiments that do not vary it
    """Processes that train together, one per GPU where there are GPUs."""
    rounds: Positive = 2
    """How often each contender has its turn."""
    warmup: NonNegative = 2
    """Steps of each turn before timing begins; in the first one ours learns in which order layers are used."""
    steps: Positive = 4
    """Steps timed in each round."""
    model: ModelClass = "cs336_systems.model:TransformerLM"
    """The model class, as package.module:Class; any class with TransformerLM's arguments will do. To be sharded by
    blocks it needs these in `blocks`."""

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """As of all training on several ranks."""
        return planned_steps(cell, metric)
