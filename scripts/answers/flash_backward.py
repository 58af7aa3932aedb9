"""Answers to `flash_backward`: the backward pass as a Triton kernel and as compiled PyTorch."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.views.attention_calls import availability
from scripts.views.backward_ways import backward_ways
from scripts.views.data import select
from scripts.views.flash_rivals import ONE_HEAD


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the section."""
    table = tables["flash"]
    return availability(table) | backward_ways(select(table, **ONE_HEAD))
