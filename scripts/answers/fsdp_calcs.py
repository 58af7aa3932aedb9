"""Answer to `fsdp_calcs`: formulas, and an example from closed forms."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.answer import Answer, say
from scripts.rendering.markup import Typst
from scripts.views.parallelism import example_answers


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answer, and the example."""
    example = example_answers()
    return {
        **example,
        "limit": Answer(
            "FLOPs, time, limit",
            Typst("Both passes hide their communication up to $N = 1 + B W \\/ C$ devices, as in data parallelism."),
            say(
                "In the example {limit}; a step sends 1.5 times the bytes of data parallelism.",
                limit=example["batch_limit"],
            ),
        ),
    }
