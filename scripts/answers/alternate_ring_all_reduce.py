"""Answer to `alternate_ring_all_reduce`, a formula."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import Answer
from scripts.rendering.markup import Typst


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer."""
    return {
        "time": Answer(
            "Time",
            Typst("It takes $(N - 1) S \\/ W$, which is $N \\/ 2$ times the time of the ring all-reduce."),
        )
    }
