"""Answers to `fsdp_tp_calcs`: formulas, an example from closed forms, and all strategies in a table."""

import math

from scripts.rendering.answer import Answer, Captioned, Facts, Found, Tables, say
from scripts.rendering.markup import Table, Typst, finalize
from scripts.views.parallelism import EXAMPLE, example_answers

LIMITS = [
    ("data parallel", "backward", "12 B D F", "12 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("FSDP", "forward", "6 B D F", "6 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("FSDP", "backward", "12 B D F", "12 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("tensor parallel", "forward", "6 B D F", "4 B D (N - 1)", "1 + c", EXAMPLE.tensor_forward_limit),
    ("tensor parallel", "backward", "12 B D F", "4 B D (N - 1)", "1 + 2 c", EXAMPLE.tensor_backward_limit),
    (
        "FSDP + tensor, at once",
        "forward",
        "6 B D F",
        "max {6 D F (X - 1), med 4 B D (Y - 1)}",
        "(1 + a) (1 + c)",
        EXAMPLE.mixed_limit(overlapped=True),
    ),
    (
        "FSDP + tensor, in turn",
        "forward",
        "6 B D F",
        "6 D F (X - 1) + 4 B D (Y - 1)",
        "(a c + a + c)^2 \\/ (4 a c)",
        EXAMPLE.mixed_limit(overlapped=False),
    ),
]
"""Strategy, pass; N times the FLOPs and the bytes sent per device; the most devices as a formula and in the example."""


def answers(tables: Tables) -> Found:
    """The section's answer, and the example."""
    at_once, in_turn = (EXAMPLE.mixed_limit(overlapped=overlapped) for overlapped in (True, False))
    facts = Facts(at_once=at_once, in_turn=in_turn, x=EXAMPLE.best_fsdp(in_turn, overlapped=False))
    limits = Table(
        ["strategy", "pass", "N × FLOPs per device", "N × bytes sent per device", "most devices", "example"],
        [
            [name, which, *(Typst(f"${form}$") for form in forms), finalize(math.floor(limit))]
            for name, which, *forms, limit in LIMITS
        ],
        text_columns=5,
    )
    return {
        **example_answers(),
        "limit": Answer(
            "FLOPs, time, limit",
            facts.say(
                "Overlapped, the limits multiply: $N <= (1 + a)(1 + c)$, {most} devices in the example.",
                most=math.floor(at_once),
            ),
            facts.say(
                "FLOPs are $6 B D F\\/N$, seconds of communication $max {{6 D F (X-1), 4 B D (Y-1)}}\\/(N W)$.",
                "Sharing a link, {most} with $X={x:sig}$ and $Y={in_turn / x:sig}$: {at_once / in_turn:times} fewer.",
                most=math.floor(in_turn),
            ),
            evidence=Captioned(
                limits, say("All strategies, with $a = B W \\/ C$ and $c = 3 F W \\/ (2 C)$."), closed_form=True
            ),
        ),
    }
