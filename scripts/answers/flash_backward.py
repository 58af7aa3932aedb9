"""Answers to `flash_backward`: the backward pass as a Triton kernel and as compiled PyTorch."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.answers.helpers.backward_ways import backward_ways
from scripts.answers.helpers.flash_rivals import ONE_HEAD
from scripts.data import select
from scripts.implementations import availability


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["flash"]
    return availability(table) | backward_ways(select(table, **ONE_HEAD))
