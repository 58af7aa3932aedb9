"""Answer to `fsdp_calcs`: formulas, and an example from closed forms."""

from scripts.rendering.answer import Answer, Facts, Found, Tables
from scripts.rendering.markup import Typst
from scripts.views.parallelism import example_answers


def answers(tables: Tables) -> Found:
    """The section's answer, and the example."""
    example = example_answers()
    facts = Facts(limit=example["batch_limit"])
    return {
        **example,
        "limit": Answer(
            "FLOPs, time, limit",
            Typst("$6 B D F \\/ N$ FLOPs forward, twice that backward; compute-bound up to $N = 1 + B W \\/ C$."),
            facts.say(
                "Communication takes $6 (N - 1) D F \\/ (N W)$ seconds forward, twice that backward.",
                "In the example the limit is {limit} devices.",
            ),
        ),
    }
