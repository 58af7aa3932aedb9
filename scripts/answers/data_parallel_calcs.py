"""Answer to `data_parallel_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "The backward pass is compute-bound up to $N = 1 + B W\\/C$ devices.",
    "Each device computes $12 B D F\\/N$ FLOPs and communicates for $12 (N-1) D F\\/(N W)$ seconds. In the example the "
    "limit is {batch_limit} devices; the layer's sizes cancel.",
)
