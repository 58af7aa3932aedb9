"""Parameters of the experiment on optimizers whose state is sharded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from cs336_systems.accounting.contenders import PASSES, UPDATE, broadcasts, by_owners, ddp, in_buckets, together
from cs336_systems.accounting.setting import Scheme
from cs336_systems.experiments.contender import BUILDERS, COMMON_MB, Declared, names_of, ours, pytorchs
from cs336_systems.experiments.data_parallel import DDP_MB, PARTS, WORK, TrainingOnRanks, own_next_to

HELD = ("parameters", "gradients", "optimizer_state")
"""Categories in which a rank's memory is counted, tensor by tensor."""
MOMENTS = ("initialized", "before_update", "after_update")
"""Moments at which memory is measured: after model, wrapper and optimizer are created; and in a step after the first,
before and after the optimizer's update."""
REDUCED = in_buckets(COMMON_MB)
SCATTERED = by_owners(PASSES, ("reduce_scatter", "reduce"), COMMON_MB)
SHARED = by_owners(UPDATE, ("all_gather", "broadcast"), COMMON_MB)
DDP = ddp(DDP_MB, broadcasts=True)
SHARDED: Scheme = "sharded optimizer"


_ours = partial(ours, scheme=SHARDED)
_theirs = partial(pytorchs, scheme=SHARDED)
_zero = partial(ours, scheme="ZeRO-2")
CONTENDERS = (
    _ours(
        "unsharded",
        "unsharded",
        builder=f"{BUILDERS}.ours:bucketed",
        scheme="data parallel",
        sends=REDUCED,
        copies=1,
    ),
    _ours("sharded", "sharded", sends=together(REDUCED, SHARED), copies=1),
    _ours("sharded_symmetric_memory", "sharded, symmetric memory", sends=REDUCED, copies=2),
    _zero("sharded_gradients", "sharded, gradients too", sends=together(SCATTERED, SHARED), copies=2),
    _zero("sharded_gradients_symmetric_memory", "gradients too, symmetric memory", sends=SCATTERED, copies=3),
    _theirs(
        "zero_redundancy",
        "PyTorch, default",
        sends=together(DDP, broadcasts(views=False)),
        copies=2,
    ),
    _theirs(
        "zero_redundancy_view",
        "PyTorch, parameter views",
        sends=together(DDP, broadcasts(views=True)),
        copies=2,
    ),
    # Gradients, too, are views of buckets: PyTorch at its fastest.
    _theirs(
        "zero_redundancy_views",
        "PyTorch, gradient views too",
        sends=together(ddp(COMMON_MB, broadcasts=False), broadcasts(views=True)),
        copies=1,
    ),
)
"""All contenders, in the order of tables; the unsharded optimizer comes first."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSharding(TrainingOnRanks):
    """Train a Transformer language model with sharded optimizers, and measure their memory and time."""

    name: ClassVar[str] = "optimizer_sharding"
    details: ClassVar[tuple[str, ...]] = ("contender", "moment", "part", "kind")
    contenders: ClassVar[tuple[Declared, ...]] = CONTENDERS
    vocabulary: ClassVar[Mapping[str, Sequence[str]]] = {
        "contender": names_of(CONTENDERS),
        "moment": MOMENTS,
        "part": HELD,
        "kind": (*WORK, *PARTS),
    }
    """Allowed values, or prefixes, of these columns, as in data parallelism."""
    numeric_tests: ClassVar[tuple[str, ...]] = ("parallel.test_data_parallel", "parallel.test_sharded_optimizer")

    implementation: Annotated[str, own_next_to(CONTENDERS)] = ""
    """Your own sharded optimizers to compare, as NAME=package.module:name, separated by commas. Each is called with the
    parameters, AdamW's class and its arguments; gradients are averaged by this project's bucketed wrapper."""

    @classmethod
    def planned_samples(cls, cell: Any, metric: str) -> int | None:
        """Count samples: one per rank for memory, otherwise as in all training on several ranks."""
        if metric in ("held", "allocated", "peak_memory"):
            return cell.processes
        return super().planned_samples(cell, metric)
