"""Memory and communication of data parallelism with sharded training state.

A rank's memory consists of parameters, gradients and optimizer state. Shares are assumed to be equal, which is nearly
true for many parameters. Communication uses ring collectives, which send the fewest bytes possible (Patarasuk & Yuan
2009). The stages follow Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter
models", sections 5 and 7.
"""

from dataclasses import dataclass

from cs336_systems.accounting.transformer import adamw_bytes, parameters
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.sizes import ModelShape


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Bytes of a model's training state."""

    parameters: float
    gradients: float
    optimizer_state: float

    @property
    def total(self) -> float:
        """Bytes of parameters, gradients and optimizer state."""
        return self.parameters + self.gradients + self.optimizer_state


def fp32_adamw(shape: ModelShape, vocab_size: int) -> TrainingState:
    """The model of `model.py`, all in fp32, with fused AdamW."""
    weights = FP32_BYTES * parameters(shape, vocab_size)
    return TrainingState(parameters=weights, gradients=weights, optimizer_state=adamw_bytes(shape, vocab_size))


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A sharding scheme: which state is sharded, and how gradients and parameters are communicated."""

    shards_state: bool
    """Whether a rank has only its own parameters' optimizer state, updates these parameters, and gathers the others."""
    reduces_to_owners: bool
    """Whether a gradient's mean is sent only to its parameter's owner (reduce-scatter), or to all (all-reduce)."""
    frees_gradients: bool
    """Whether the gradients of other ranks' parameters are freed once they are reduced."""

    def memory(self, whole: TrainingState, ranks: int) -> TrainingState:
        """Bytes on each rank when it updates its parameters."""
        return TrainingState(
            parameters=whole.parameters,
            gradients=whole.gradients / (ranks if self.frees_gradients else 1),
            optimizer_state=whole.optimizer_state / (ranks if self.shards_state else 1),
        )

    def sent(self, whole: TrainingState, ranks: int) -> float:
        """Bytes that each rank sends in a step.

        A reduce-scatter or all-gather of s bytes sends (N - 1)/N · s; an all-reduce is one of each.
        """
        share = (ranks - 1) / ranks
        reduce = share * whole.gradients * (1 if self.reduces_to_owners else 2)
        return reduce + (share * whole.parameters if self.shards_state else 0)


SCHEMES = {
    "data parallel": Scheme(shards_state=False, reduces_to_owners=False, frees_gradients=False),
    "sharded optimizer": Scheme(shards_state=True, reduces_to_owners=False, frees_gradients=False),
    "ZeRO-1": Scheme(shards_state=True, reduces_to_owners=True, frees_gradients=False),
    "ZeRO-2": Scheme(shards_state=True, reduces_to_owners=True, frees_gradients=True),
}
"""`ShardedOptimizer` after a data-parallel wrapper is the handout's sharded optimizer. With gradients from
`ShardedGradientsDataParallel`, which frees the gradients it has sent, it is ZeRO-2, which sends as much as ZeRO-1."""
