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
            Typst("Both passes hide their communication up to $N = 1 + B W \\/ C$ devices, as in data parallelism."),
            facts.say("In the example {limit}; a step sends 1.5 times the bytes of data parallelism."),
        ),
    }
