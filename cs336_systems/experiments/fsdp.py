"""Parameters of the experiment on fully sharded data parallelism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from cs336_systems.accounting.contenders import by_block, by_layer, fully_shard, to_peers
from cs336_systems.experiments.base import Size
from cs336_systems.experiments.contender import BUILDERS, COMMON_MB, Declared, names_of, ours
from cs336_systems.experiments.data_parallel import BASELINE, PARTS, WORK, TrainingOnRanks, own_next_to

_sharded = partial(ours, scheme="FSDP", autocasts=False, copies=2)


def _theirs(name: str, title: str, builder: str) -> Declared:
    """Declare PyTorch's, with some of its options."""
    return _sharded(name, title, builder=f"{BUILDERS}.pytorch:{builder}", foreign=True, sends=fully_shard)


CONTENDERS = (
    ours(BASELINE, "no communication", builder=f"{BUILDERS}.ours:alone", scheme="alone"),
    ours(
        "symmetric_memory",
        "data parallel",
        scheme="data parallel",
        sends=to_peers(COMMON_MB),
        copies=4,
    ),
    ours(
        "sharded_optimizer",
        "sharded optimizer",
        scheme="sharded optimizer",
        sends=to_peers(COMMON_MB),
        copies=5,
    ),
    _sharded("fsdp", "FSDP, by layer", sends=by_layer, by_block=False),
    _sharded("fsdp_blocks", "FSDP, by block", sends=by_block),
    _theirs("fully_shard", "fully_shard", "by_block"),
    # Two blocks prefetched explicitly in both passes, and buffers in memory of the process group.
    _theirs("fully_shard_tuned", "tuned fully_shard", "by_block_tuned"),
)
"""All contenders, in the order of tables."""
COLLECTIVES = ("all_gather", "reduce_scatter")
"""The collectives that are timed separately."""


@dataclass(frozen=True, kw_only=True)
class FullyShardedTraining(TrainingOnRanks):
    """Train a Transformer language model with replicated or sharded state, and measure the cost of gathering it."""

    name: ClassVar[str] = "fsdp"
    details: ClassVar[tuple[str, ...]] = ("wrapper", "kind")
    contenders: ClassVar[tuple[Declared, ...]] = CONTENDERS
    vocabulary: ClassVar[Mapping[str, Sequence[str]]] = {
        "wrapper": names_of(CONTENDERS),
        "kind": (*WORK, *COLLECTIVES, *PARTS),
    }
    """Allowed values, or prefixes, of these columns, as in data parallelism."""
    numeric_tests: ClassVar[tuple[str, ...]] = (
        "parallel.test_compiled",
        "parallel.test_fsdp",
        "parallel.test_sharded_optimizer",
        "verify.test_ours",
    )
    tested_if: ClassVar[Mapping[str, str]] = {"parallel.test_compiled": "compiled"}

    added_later: ClassVar[Mapping[str, Any]] = {**TrainingOnRanks.added_later, "compiled": False}

    size: Size = "2.7B"
    precision: Literal["fp32", "bf16"] = "fp32"
    """fp32 with TF32 off, or bf16 compute over fp32 weights: autocast if weights are replicated; if they are sharded,
    weights are gathered and gradients reduced in bf16."""
    compiled: bool = False
    """Whether each Transformer block is compiled separately; the step is launched call by call."""
    implementation: Annotated[str, own_next_to(CONTENDERS)] = ""
    """Your own wrappers to compare, as NAME=package.module:name, separated by commas. Each is called with the module
    and compute_dtype; finish_gradient_synchronization() follows the backward pass. Unsharded weights are read with
    gather_full_parameters() or gather_full_params(), or from its parameters."""
