"""Memory and communication of fully sharded data parallelism on the Transformer language model.

Each of N ranks keeps 1/N of every matrix, of its gradient and of AdamW's two moments, in fp32, and all of the norms'
weights (ZeRO stage 3, Rajbhandari et al. 2020). A unit (a layer or a block) is gathered before use, while at most the
next two are in flight. Collectives are modelled as rings by bytes only: no latency per message, and independent links
(Patarasuk & Yuan 2009).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cs336_systems.accounting.transformer import parameter_tensors, parameters
from cs336_systems.accounting.units import BYTES, FP32_BYTES
from cs336_systems.limits import AHEAD
from cs336_systems.sizes import ModelShape


@dataclass(frozen=True)
class Matrix:
    """The weight of a layer."""

    name: str
    rows: int
    columns: int

    @property
    def numbers(self) -> int:
        """The number of its elements."""
        return self.rows * self.columns

    def shard(self, ranks: int) -> int:
        """Elements on the first rank: rows are divided, so the last ranks may have fewer."""
        return math.ceil(self.rows / ranks) * self.columns

    def padded(self, ranks: int) -> int:
        """Elements sent and in the gathered copy, padded to equal rows for each rank."""
        return ranks * self.shard(ranks)


Unit = tuple[Matrix, ...]
"""Matrices that are gathered together."""


def block_matrices(shape: ModelShape) -> Iterator[Matrix]:
    """The matrices of one block, in the order of their use."""
    for name in ("query", "key", "value", "output"):
        yield Matrix(name, shape.d_model, shape.d_model)
    yield Matrix("gate", shape.d_ff, shape.d_model)
    yield Matrix("up", shape.d_ff, shape.d_model)
    yield Matrix("down", shape.d_model, shape.d_ff)


@dataclass(frozen=True, kw_only=True)
class FullySharded:
    """A model that is sharded over ranks."""

    shape: ModelShape
    vocab_size: int
    ranks: int
    precision: str
    """fp32 or bf16: the dtype in which weights are gathered and gradients reduced."""
    by_block: bool = False
    """Whether a block is a unit, or each layer by itself."""

    def units(self) -> list[Unit]:
        """Units, in the order of the forward pass."""
        embedding = Matrix("embedding", self.vocab_size, self.shape.d_model)
        head = Matrix("head", self.vocab_size, self.shape.d_model)
        block = tuple(block_matrices(self.shape))
        blocks: list[Unit] = [block] if self.by_block else [(matrix,) for matrix in block]
        return [(embedding,), *blocks * self.shape.num_layers, (head,)]

    @property
    def sharded(self) -> int:
        """Elements of the matrices on the first rank, which keeps the most."""
        return sum(matrix.shard(self.ranks) for unit in self.units() for matrix in unit)

    @property
    def replicated(self) -> int:
        """Elements on every rank: the weights of the norms."""
        return parameters(self.shape, self.vocab_size) - sum(m.numbers for unit in self.units() for m in unit)

    @property
    def weights(self) -> int:
        """Bytes of the weights on the first rank, and of their gradients."""
        return FP32_BYTES * (self.sharded + self.replicated)

    @property
    def moments(self) -> int:
        """Bytes of fused AdamW's state on the first rank: two moments, and per tensor a step counter on the device."""
        return 2 * self.weights + FP32_BYTES * parameter_tensors(self.shape)

    @property
    def gathered(self) -> int:
        """Maximum bytes of gathered weights: a unit and the next ones, each counted once.

        In the backward pass the order is reversed, and the embedding is not needed.
        """
        forward = list(enumerate(self.units()))
        uses = [*forward, *reversed(forward[1:])]
        windows = (dict(uses[start : start + 1 + AHEAD]) for start in range(len(uses)))
        return max(self._bytes(window.values()) for window in windows)

    @property
    def gathered_in_a_step(self) -> int:
        """Bytes of all gathered weights: the embedding and the head are gathered once, all others for both passes."""
        units = self.units()
        return 2 * self._bytes(units) - self._bytes([units[0], units[-1]])

    @property
    def reduced_in_a_step(self) -> int:
        """Bytes of all gradients that are reduce-scattered."""
        return self._bytes(self.units())

    @property
    def sent_in_a_step(self) -> float:
        """Bytes that a rank sends: (N - 1)/N of everything gathered and reduced; norms are not counted."""
        return (self.ranks - 1) / self.ranks * (self.gathered_in_a_step + self.reduced_in_a_step)

    def _bytes(self, units: Iterable[Unit]) -> int:
        return BYTES[self.precision] * sum(matrix.padded(self.ranks) for unit in units for matrix in unit)
