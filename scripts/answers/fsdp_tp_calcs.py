"""Answers to `fsdp_tp_calcs`: formulas, an example from closed forms, and all strategies in a table."""

import math

from scripts.rendering.markup import Typst
from scripts.views.parallelism import EXAMPLE, closed_forms, limits

AT_ONCE, IN_TURN = (EXAMPLE.mixed_limit(overlapped=overlapped) for overlapped in (True, False))
FSDP = EXAMPLE.best_fsdp(IN_TURN, overlapped=False)
STRATEGIES = [
    ("data parallel", "backward", "12 B D F", "12 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("FSDP", "forward", "6 B D F", "6 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("FSDP", "backward", "12 B D F", "12 D F (N - 1)", "1 + a", EXAMPLE.batch_limit),
    ("tensor parallel", "forward", "6 B D F", "4 B D (N - 1)", "1 + c", EXAMPLE.tensor_forward_limit),
    ("tensor parallel", "backward", "12 B D F", "4 B D (N - 1)", "1 + 2 c", EXAMPLE.tensor_backward_limit),
    *(
        (f"FSDP + TP, {how}", "forward", "6 B D F", sent, most, limit)
        for how, sent, most, limit in [
            ("overlapped", "max {6 D F (X - 1), med 4 B D (Y - 1)}", "(1 + a) (1 + c)", AT_ONCE),
            ("no overlap", "6 D F (X - 1) + 4 B D (Y - 1)", "(a c + a + c)^2 \\/ (4 a c)", IN_TURN),
        ]
    ),
]
"""Strategy, pass; N times the FLOPs per device, N W times the seconds of communication; the maximum number of devices
as a formula and in the example."""

answers = limits(
    "With overlap, the limits multiply: $N <= (1+B W\\/C)(1+3 F W\\/(2 C))$, {at_once} in the example.",
    "A device performs $6 B D F\\/N$ FLOPs and communicates for $max {{6 D F (X-1), 4 B D (Y-1)}}\\/(N W)$ seconds. "
    "Without overlap, the limit is {in_turn} ($X={x:sig}$, $Y={y:sig}$).",
    closed_forms(
        ["strategy", "pass", "N × FLOPs per device", "N W × seconds of communication", "largest N", "example"],
        [
            [name, which, *(f"${form}$" for form in forms), math.floor(limit)]
            for name, which, *forms, limit in STRATEGIES
        ],
        Typst("All strategies, with $a = B W \\/ C$ and $c = 3 F W \\/ (2 C)$."),
        text_columns=5,
    ),
    at_once=math.floor(AT_ONCE),
    in_turn=math.floor(IN_TURN),
    x=FSDP,
    y=IN_TURN / FSDP,
)
