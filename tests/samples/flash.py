"""Made-up attention implementations."""

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.flash import HALF_ONLY, ON_CPU
from cs336_systems.experiments.flash import Flash, replayed
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement, summarize
from tests.samples import NEEDS_GPU, NO_CPU_MEMORY, OOM, PEAK, jittered

PEAKS = {
    "plain": 0.1,
    "plain_compiled": 0.15,
    "tiled": 0.2,
    "tiled_compiled": 0.25,
    "triton_compiled_backward": 0.34,
    "flex": 0.36,
    "flex_autotuned": 0.37,
    "sdpa_flash": 0.38,
    "sdpa_cudnn": 0.4,
    "flash_attention_4": 0.42,
    "triton": 0.45,
}
"""The share of an H200's peak that each implementation reaches."""
KERNELS = {"triton": "attention_forward_kernel, attention_prepare_kernel, attention_backward_d64_kernel"}


def measure(cell: Flash, *, on_gpu: bool) -> list[Measurement]:
    """Contenders at 10 to 45 % of an H200's peak, what cannot run skipped; on a CPU times alone."""
    if not on_gpu and cell.implementation not in ON_CPU:
        return [NEEDS_GPU]
    if cell.implementation in HALF_ONLY and cell.precision == "fp32":
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="this backend takes fp16 and bf16 only")]
    if cell.implementation == "plain" and cell.sequence > 32_768:
        return [OOM]
    rate = PEAKS[cell.implementation] * PEAK.flops(cell.precision)
    launching = (0.005 + 1e-5 * cell.sequence) / PEAKS[cell.implementation] / 2
    medians = {
        name: launching
        + 1e3 * flash_flops(name, cell.batch_size, cell.heads, cell.sequence, cell.d, causal=cell.causal) / rate
        for name in ("forward", "backward")
    }
    medians["forward_backward"] = sum(medians.values())
    times = [summarize(name, "ms", jittered(cell, name, median, 20)) for name, median in medians.items()]
    if not on_gpu:
        return [*times, NO_CPU_MEMORY]
    return [
        *times,
        summarize("peak_memory", "MiB", [24 * cell.batch_size * cell.heads * cell.sequence * cell.d / MIB]),
        summarize("first_call", "s", jittered(cell, "first_call", 0.3, 1)),
        summarize("matmul", "ms", jittered(cell, "matmul", 0.2, 20)),
        *(by_the_handout(cell, medians["forward_backward"]) if cell.compiled_call else []),
        summarize("launches", "", [3], details={"kernels": KERNELS.get(cell.implementation, "kernel")}),
        *(replays(cell, medians["forward_backward"]) if replayed(cell.batch_size, cell.heads, cell.sequence) else []),
    ]


def by_the_handout(cell: Flash, median: float) -> list[Measurement]:
    """A long repetition at a lower clock, near the limit of power."""
    return [
        summarize("handout", "ms", jittered(cell, "handout", 1.04 * median, 50), keep=False),
        summarize("handout_sm_clock", "MHz", [1980.0, 1605.0, 1590.0]),
        summarize("handout_power", "W", [480.0, 695.0, 699.0]),
    ]


def replays(cell: Flash, median: float) -> list[Measurement]:
    """What a call costs the host, and its replay from a graph, somewhat shorter."""
    graph = summarize("graph", "ms", jittered(cell, "graph", 0.95 * median, 10))
    return [summarize("host", "us", jittered(cell, "host", 60.0, 10)), graph]
