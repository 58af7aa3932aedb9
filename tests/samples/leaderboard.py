"""Made-up steps of the 2026 leaderboard."""

from cs336_systems.accounting.leaderboard import rank_flops
from cs336_systems.accounting.transformer import parameters
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.leaderboard import Leaderboard
from cs336_systems.record.measurement import WHOLE_CELL, Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import H200, NO_CPU_MEMORY, PEAK, jittered


def measure(cell: Leaderboard, *, on_gpu: bool) -> list[Measurement]:
    """A step at 58 % of an H200's peak, and an update at 80 % of its bandwidth that costs the step a tenth of it."""
    plan = cell.memory(H200["gpu_memory"])
    if not plan.fits(H200["gpu_memory"]):
        return [Measurement(metric=WHOLE_CELL, status="skipped", message=plan.verdict(H200["gpu_memory"]))]
    shape = parse_size(cell.size)
    passes = 1e3 * rank_flops(shape, cell.vocab_size, cell.batch_size, cell.context, plan.recomputed)
    passes /= 0.58 * PEAK.bf16
    update = 1e3 * 26 * parameters(shape, cell.vocab_size) / cell.ranks / (0.8 * PEAK.bandwidth)
    times = {"step": passes + 0.1 * update, "forward_backward": passes, "update": update}
    busy = Measurement(metric="device_busy", unit="ms", status="skipped", message="on CUDA devices only")
    return [
        *(summarize(name, "ms", jittered(cell, name, ms, cell.steps)) for name, ms in times.items()),
        summarize("device_busy", "ms", [0.99 * times["step"]]) if on_gpu else busy,
        summarize("peak_memory", "MiB", [0.98 * plan.total / MIB]) if on_gpu else NO_CPU_MEMORY,
        summarize("planned_memory", "MiB", [plan.total / MIB]),
        summarize("recomputed_blocks", "", [plan.recomputed]),
        summarize("cold_start", "s", jittered(cell, "cold_start", 40, 1)),
    ]
