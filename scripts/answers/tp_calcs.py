"""Answer to `tp_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "Compute-bound up to $N = 1 + 3 F W\\/(2 C)$ forward, $1 + 3 F W\\/C$ backward.",
    "FLOPs are $6 B D F\\/N$ forward, twice that backward; each pass communicates for $4 (N - 1) B D\\/(N W)$ seconds. "
    "In the example the limits are {tensor_forward_limit} and {tensor_backward_limit} devices.",
)
