"""Answer to `data_parallel_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "$12 B D F \\/ N$ FLOPs, $12 (N - 1) D F \\/ (N W)$ seconds: compute-bound up to $N = 1 + B W \\/ C$.",
    "In the example this is {batch_limit} devices; the layer's sizes cancel.",
)
