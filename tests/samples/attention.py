"""Made-up plain attention."""

from cs336_systems.accounting.attention import flash_flops, plain_bytes_before_backward
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.attention import Attention
from cs336_systems.measure.measurement import Measurement, summarize
from tests.samples import NO_CPU_MEMORY, PEAK, jittered


def measure(cell: Attention, *, on_gpu: bool) -> list[Measurement]:
    """Passes at 20 % of an H200's peak, and the memory of the closed form plus a workspace."""
    rate = (0.25 if cell.compiled else 0.2) * PEAK.fp32
    flops = flash_flops("forward", cell.batch_size, 1, cell.sequence, cell.d, causal=False)
    forward = (0.8 if cell.compiled else 1) * (0.01 + 1e-5 * cell.sequence) + 1e3 * flops / rate
    memory = plain_bytes_before_backward(cell.batch_size, cell.sequence, cell.d) / MIB + 32
    return [
        summarize("forward", "ms", jittered(cell, "forward", forward, cell.steps)),
        summarize("backward", "ms", jittered(cell, "backward", 2 * forward, cell.steps)),
        summarize("warmup", "s", jittered(cell, "warmup", 0.1, 1)),
        *([summarize("memory_before_backward", "MiB", [memory])] if on_gpu else []),
        summarize("peak_memory", "MiB", [3 * memory]) if on_gpu else NO_CPU_MEMORY,
    ]
