"""Answer to `alternate_ring_all_reduce`, a formula."""

from scripts.rendering.answer import Answer, Answers, Tables
from scripts.rendering.markup import Typst


def answers(tables: Tables) -> Answers:
    """The section's answer."""
    return {
        "time": Answer(
            "Time", Typst("It takes $(N - 1) S \\/ W$ seconds, $N \\/ 2$ times as long as the ring all-reduce.")
        )
    }
