"""Answer to `fsdp_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "Both passes are compute-bound up to $N = 1 + B W\\/C$ devices.",
    "The forward pass takes $6 B D F\\/N$ FLOPs per device and communicates for $6 (N-1) D F\\/(N W)$ seconds; the "
    "backward pass doubles both. In the example the limit is {batch_limit} devices.",
)
