"""Strategies of activation checkpointing, from closed forms: a table and a sketch."""

import math
from collections.abc import Mapping

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.strategies import Strategy, from_the_start, keep_all, nested, one_level
from scripts.rendering.markup import Table, Typst
from scripts.views.units import memory_unit

SKETCHED = 16
"""Blocks of the sketch."""
ORDERS = [("O(N)", "N"), ("O(√N)", "2 N"), ("O(log N)", "O(N log N)"), ("O(1)", "N (N + 1) / 2")]
"""Memory and forward passes of each strategy for N blocks."""


def strategies(layers: int) -> dict[str, Strategy]:
    """Each strategy on a number of blocks, by its name for readers."""
    segment = math.isqrt(layers)
    return {
        "keep everything": keep_all(layers),
        f"one level, segments of √N ({segment})": one_level(layers, segment),
        "nested halves": nested(layers),
        "from the start": from_the_start(layers),
    }


def strategies_table(layers: int, blocks: Mapping[str, BlockActivations]) -> Table:
    """The memory and the cost of each strategy, and its activations' memory in the model, for each attention."""
    unit, size = memory_unit(max((layers * block.saved_bytes for block in blocks.values()), default=0))
    rows = [
        [
            *(name, memory, passes),
            *(str(len(strategy.kept)), str(len(strategy.saved)), str(strategy.forwards)),
            *(f"{strategy.memory(block.residual, block.saved_bytes) / size:.3g}" for block in blocks.values()),
        ]
        for (name, strategy), (memory, passes) in zip(strategies(layers).items(), ORDERS, strict=True)
    ]
    head = ["strategy", "memory", "forward passes", "only input", "all saved", "passes", *blocks]
    groups = [("", 1), ("of N blocks", 2), (f"N = {layers}", 3), (f"memory / {unit}", len(blocks))]
    return Table(head, rows, groups=groups)


def sketch() -> list[tuple[str, list[Typst]]]:
    """For each strategy, the part of each block that is in memory at the peak: everything it saves, its input, or
    nothing.
    """
    return [
        (
            name,
            [
                Typst("saved" if index in strategy.saved else "input" if index in strategy.kept else "nothing")
                for index in range(SKETCHED)
            ],
        )
        for name, strategy in strategies(SKETCHED).items()
    ]
