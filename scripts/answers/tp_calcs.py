"""Answer to `tp_calcs`: formulas, and an example from closed forms."""

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
            Typst("Compute-bound up to $N = 1 + 3 F W \\/ (2 C)$ forward, $1 + 3 F W \\/ C$ backward."),
            say(
                "In the example {forward} and {backward} devices.",
                forward=example["tensor_forward_limit"],
                backward=example["tensor_backward_limit"],
            ),
        ),
    }
