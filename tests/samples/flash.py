"""Made-up attention implementations."""

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.benchmarks.flash import HALF_ONLY, ON_CPU
from cs336_systems.experiments.flash import HOST_BOUND, Flash
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement, summarize
from tests.samples import NEEDS_GPU, NO_CPU_MEMORY, OOM, PEAK, jittered


def measure(cell: Flash, *, on_gpu: bool) -> list[Measurement]:
    """Contenders at 10 to 45 % of an H200's peak, what cannot run skipped; on a CPU times alone."""
    if not on_gpu and cell.implementation not in ON_CPU:
        return [NEEDS_GPU]
    if cell.implementation in HALF_ONLY and cell.precision == "fp32":
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="this backend takes fp16 and bf16 only")]
    if cell.implementation == "plain" and cell.sequence > 32_768:
        return [OOM]
    peak = {"plain": 0.1, "plain_compiled": 0.15, "triton": 0.45}.get(cell.implementation, 0.4)
    rate = peak * PEAK.flops(cell.precision)
    times = [
        summarize(name, "ms", jittered(cell, name, 0.005 + 1e3 * flops / rate, 20))
        for name in ("forward", "backward", "forward_backward")
        for flops in [flash_flops(name, 1, cell.heads, cell.sequence, cell.d, causal=True)]
    ]
    if not on_gpu:
        return [*times, NO_CPU_MEMORY]
    host_bound = cell.sequence <= HOST_BOUND
    return [
        *times,
        summarize("peak_memory", "MiB", [24 * cell.heads * cell.sequence * cell.d / MIB]),
        summarize("first_call", "s", [0.3]),
        summarize("matmul", "ms", [0.2]),
        *([summarize("host", "us", [60.0]), summarize("graph", "ms", [0.02])] if host_bound else []),
    ]
