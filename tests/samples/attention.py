"""Made-up plain attention."""

from cs336_systems.accounting.attention import flash_flops, plain_bytes_before_backward, plain_peak_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.attention import Attention
from cs336_systems.record.measurement import Measurement, summarize
from tests.samples import NO_CPU_MEMORY, PEAK, jittered


def measure(cell: Attention, *, on_gpu: bool) -> list[Measurement]:
    """Passes at 20 % of an H200's peak, and the memory of the closed form plus a workspace; compiled, half the peak."""
    rate = (0.25 if cell.compiled else 0.2) * PEAK.fp32
    flops = flash_flops("forward", cell.batch_size, 1, cell.sequence, cell.d, causal=False)
    forward = (0.8 if cell.compiled else 1) * (0.01 + 1e-5 * cell.sequence) + 1e3 * flops / rate
    memory = plain_bytes_before_backward(cell.batch_size, cell.sequence, cell.d) / MIB + 32
    peak = plain_peak_bytes(cell.batch_size, cell.sequence, cell.d) / MIB
    return [
        summarize("forward", "ms", jittered(cell, "forward", forward, cell.steps)),
        summarize("backward", "ms", jittered(cell, "backward", 2 * forward, cell.steps)),
        summarize("warmup", "s", jittered(cell, "warmup", 0.1, 1)),
        *([summarize("memory_before_backward", "MiB", [memory])] if on_gpu else []),
        summarize("peak_memory", "MiB", [(peak / 2 if cell.compiled else peak) + 32]) if on_gpu else NO_CPU_MEMORY,
        *(watched(cell, forward) if on_gpu else []),
    ]


def watched(cell: Attention, forward: float) -> list[Measurement]:
    """A device that waits for the host in short passes, and a compiled step of half as many launches."""
    work = max(0.1 * forward, forward - 0.05)
    return [
        summarize("forward_busy", "ms", [work]),
        summarize("backward_busy", "ms", [2 * work]),
        summarize("device_busy", "ms", [3 * work]),
        summarize("launches", "", [7 if cell.compiled else 14]),
    ]
