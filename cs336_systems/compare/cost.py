"""Price and energy per token, if a step's tokens are known."""

from dataclasses import dataclass
from typing import Any

from cs336_systems.compare.cells import Cell
from cs336_systems.experiments.metrics import SECONDS
from cs336_systems.record.measurement import POWER
from cs336_systems.record.validation import Row

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """Cost of a step's tokens."""

    price: float | None
    """Price of a million tokens, in the currency of the price per GPU-hour."""
    joules: float | None
    """Energy of a token, J."""
    by_counter: bool
    """Whether the energy is the driver's counter over a series of steps; otherwise it is the whole cell's median power
    times the step."""


def cost(cell: Cell, row: Row, price: float | None) -> Cost | None:
    """The cost of a training step's tokens; None for other times, and if neither price nor power is known."""
    tokens = tokens_of(row)
    if row.metric != "step" or not tokens or not row.median or not row.gpu:
        return None
    gpus = max(getattr(row, "gpu_count", 1), 1)
    seconds = row.median * SECONDS[row.unit]
    energy, power = cell.median("energy", row), cell.median(POWER)
    by_counter = energy is not None
    if energy is None and power is not None:
        energy = power * seconds
    if energy is None and price is None:
        return None
    return Cost(
        price=None if price is None else price * gpus * seconds / SECONDS_PER_HOUR / tokens * 1e6,
        joules=None if energy is None else energy * gpus / tokens,
        by_counter=by_counter,
    )


def tokens_of(row: Any) -> int:
    """Tokens of a step on all ranks; 0 for a row without a model."""
    if not all(hasattr(row, name) for name in ("batch_size", "context")):
        return 0
    return int(row.batch_size * row.context * getattr(row, "processes", 1))
