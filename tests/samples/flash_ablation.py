"""Made-up ablations of the attention kernels."""

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.record.measurement import Measurement, summarize
from tests.samples import NEEDS_GPU, PEAK, jittered


def measure(cell: FlashAblation, *, on_gpu: bool) -> list[Measurement]:
    """The kernels at 45 % of an H200's peak as they are, at 30 % with a decision taken back; nothing on a CPU."""
    if not on_gpu:
        return [NEEDS_GPU]
    rate = (0.45 if cell.without == "nothing" else 0.3) * PEAK.flops(cell.precision)
    return [
        summarize(name, "ms", jittered(cell, name, 1e3 * flops / rate, 20))
        for name, kind in (("forward", "forward"), ("backward", "backward"), ("backward_of_sum", "backward"))
        for flops in [flash_flops(kind, 1, cell.heads, cell.sequence, cell.d, causal=True)]
    ]
