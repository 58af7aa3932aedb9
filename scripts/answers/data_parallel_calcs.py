"""Answer to `data_parallel_calcs`: formulas, and an example from closed forms."""

from scripts.rendering.answer import Answer, Found, Tables, say
from scripts.rendering.markup import Typst
from scripts.views.parallelism import example_answers


def answers(tables: Tables) -> Found:
    """The section's answer, and the example."""
    example = example_answers()
    return {
        **example,
        "limit": Answer(
            "FLOPs, time, limit",
            Typst(
                "$12 B D F \\/ N$ FLOPs, $12 (N - 1) D F \\/ (N W)$ seconds: compute-bound up to $N = 1 + B W \\/ C$."
            ),
            say("In the example that is {limit} devices; the layer's sizes cancel.", limit=example["batch_limit"]),
        ),
    }
