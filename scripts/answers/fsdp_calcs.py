"""Answer to `fsdp_calcs`: formulas, and an example from closed forms."""

from scripts.views.parallelism import limits

answers = limits(
    "$6 B D F \\/ N$ FLOPs forward, twice that backward; compute-bound up to $N = 1 + B W \\/ C$.",
    "Communication takes $6 (N - 1) D F \\/ (N W)$ seconds forward, twice that backward. In the example the limit is "
    "{batch_limit} devices.",
)
