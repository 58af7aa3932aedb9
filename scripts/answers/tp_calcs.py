"""Answer to `tp_calcs`: formulas, and an example from closed forms."""

from scripts.rendering.answer import Answer, Facts, Found, Tables
from scripts.rendering.markup import Typst
from scripts.views.parallelism import example_answers


def answers(tables: Tables) -> Found:
    """The section's answer, and the example."""
    example = example_answers()
    facts = Facts(forward=example["tensor_forward_limit"], backward=example["tensor_backward_limit"])
    return {
        **example,
        "limit": Answer(
            "FLOPs, time, limit",
            Typst("Compute-bound up to $N = 1 + 3 F W\\/(2 C)$ forward, $1 + 3 F W\\/C$ backward."),
            facts.say(
                "FLOPs are $6 B D F\\/N$ forward, twice that backward; each pass communicates for "
                "$4 (N - 1) B D\\/(N W)$ seconds.",
                "In the example the limits are {forward} and {backward} devices.",
            ),
        ),
    }
