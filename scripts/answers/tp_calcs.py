"""Answer to `tp_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "The forward pass is compute-bound up to $N=1+3 F W\\/(2 C)$, the backward pass up to $1+3 F W\\/C$.",
    "A device performs $6 B D F\\/N$ FLOPs forward, twice that backward; each pass communicates for "
    "$4 (N-1) B D\\/(N W)$ seconds. In the example the limits are {tensor_forward_limit} and {tensor_backward_limit}.",
)
