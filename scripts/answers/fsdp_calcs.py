"""Answers to `fsdp_calcs`: formulas, and an example from closed forms."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.views.meshes import example_answers


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values of the section."""
    return example_answers()
