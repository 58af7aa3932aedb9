"""Attention times that are impossibly short according to the GPU's roofline."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from cs336_systems.accounting.attention import least_flops
from cs336_systems.benchmarks.comparison.refusal import refuse
from cs336_systems.measure.gpus import gpu_of

FASTER_CLOCK = 1.15
"""Factor by which a GPU's clock may exceed the clock of its data sheet's rates."""
PASSES = {"graph": "forward_backward", "handout": "forward_backward"}
"""The passes that a metric times, if it is not named after them."""


def require_possible(
    timed: Mapping[str, float], inputs: Sequence[Tensor], precision: str, gpu: str, *, is_causal: bool
) -> None:
    """Refuse times shorter than the matmuls take at the GPU's peak rate, or reading q, k and v once.

    `timed` has seconds by metric; q, k and v are [heads, sequence, d] each. Nothing is known of an unlisted GPU.
    """
    if (sheet := gpu_of(gpu)) is None:
        return
    for metric, seconds in timed.items():
        flops = least_flops(PASSES.get(metric, metric), 1, *inputs[0].shape, causal=is_causal)
        computing = flops / sheet.accurate_flops(precision)
        # A replay finds its inputs in the L2 cache.
        reading = sum(x.nbytes for x in inputs) / sheet.bandwidth if metric != "graph" else 0.0
        least = max(computing, reading) / FASTER_CLOCK
        if seconds < least:
            what = f"{flops:.3g} FLOPs in {precision}" if computing >= reading else "reading q, k and v"
            too_short = f"{1e3 * seconds:.3g} ms, less than the {1e3 * least:.3g} ms of {what} on {gpu}"
            refuse(f"{metric} was timed at {too_short}", foreign=True)
