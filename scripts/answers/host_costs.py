"""Answers to `host_costs`: launches, the time they take, and where the device waits for them."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers."""
    return {"launches": Answer("Launches", NOTHING)}
