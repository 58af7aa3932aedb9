"""Answers on strategies of activation checkpointing, from closed forms: a table and a sketch."""

import math
from collections.abc import Mapping
from typing import Any

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.strategies import (
    Strategy,
    from_the_start,
    keep_all,
    nested,
    one_level,
    square_root_segment,
)
from cs336_systems.sizes import SIZES
from scripts.rendering.markup import Table, Typst
from scripts.views.units import memory_unit

SKETCHED = 16
"""Blocks of the sketch."""
HANDOUT_LAYERS = SIZES["2.7B"].num_layers
"""Of the handout's model, which strategies are counted for where no model was measured."""
ORDERS = [("O(N)", "N"), ("O(√N)", "2 N"), ("O(log N)", "O(N log N)"), ("O(1)", "N (N + 1) / 2")]
"""Memory and forward passes of each strategy for N blocks."""


def strategy_answers(blocks: Mapping[str, BlockActivations]) -> dict[str, Any]:
    """The strategies for a model of such blocks, one for each attention."""
    layers = next((block.shape.num_layers for block in blocks.values()), HANDOUT_LAYERS)
    return {
        "layers": layers,
        "strategies": strategies_table(layers, blocks),
        "sketch": sketch(),
        "ratios": {
            attention: (
                block.saved_bytes / block.residual,
                (layers * block.residual / block.saved_bytes) ** 0.5,
                square_root_segment(layers, block.residual, block.saved_bytes),
            )
            for attention, block in blocks.items()
        },
    }


def strategies(layers: int) -> dict[str, Strategy]:
    """What readers call each strategy, on a number of blocks."""
    segment = math.isqrt(layers)
    return {
        "keep everything": keep_all(layers),
        f"one level, segments of {segment}": one_level(layers, segment),
        "nested halves": nested(layers),
        "from the start": from_the_start(layers),
    }


def strategies_table(layers: int, blocks: Mapping[str, BlockActivations]) -> Table:
    """What each strategy keeps and costs, and what its activations take in the model, for each attention."""
    unit, size = memory_unit(max((layers * block.saved_bytes for block in blocks.values()), default=0))
    rows = [
        [
            name,
            memory,
            passes,
            str(len(strategy.kept)),
            str(len(strategy.saved)),
            str(strategy.forwards),
            *(f"{strategy.memory(block.residual, block.saved_bytes) / size:.3g}" for block in blocks.values()),
        ]
        for (name, strategy), (memory, passes) in zip(strategies(layers).items(), ORDERS, strict=True)
    ]
    head = ["strategy", "memory", "forward passes", "inputs", "blocks saved", "passes", *blocks]
    groups = [("", 1), ("of N blocks", 2), (f"N = {layers}", 3)]
    return Table(head, rows, groups=[*groups, (f"memory / {unit}", len(blocks))] if blocks else groups)


def sketch() -> list[tuple[str, list[Typst]]]:
    """For each strategy what is in memory of each block when most is: all it saves, its input, or nothing."""
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
