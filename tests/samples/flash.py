"""Made-up attention implementations."""

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.flash import Flash, replayed
from cs336_systems.record.measurement import WHOLE_CELL, Measurement, summarize
from tests.samples import NEEDS_GPU, NO_CPU_MEMORY, OOM, PEAK, jittered

LEAST, MOST = 0.1, 0.45
"""The shares of an H200's peak that the last implementation of the registry and the first one reach."""
KERNELS = {"triton": "attention_forward_kernel, attention_preprocess_kernel, attention_backward_d64_kernel"}


def measure(cell: Flash, *, on_gpu: bool) -> list[Measurement]:
    """Contenders at 10 to 45 % of an H200's peak, what cannot run skipped; on a CPU times alone."""
    contender = cell.contender
    if not on_gpu and "cpu" not in contender.devices:
        return [NEEDS_GPU]
    if on_gpu and cell.precision not in contender.precisions:
        return [Measurement(metric=WHOLE_CELL, status="skipped", message="on a GPU, it takes bf16 only")]
    if cell.implementation == "plain" and cell.sequence > 32_768:
        return [OOM]
    share = share_of_peak(cell)
    rate = share * PEAK.flops(cell.precision)
    launching = (0.005 + 1e-5 * cell.sequence) / share / 2
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
        summarize("launches", "", [3], details={"kernels": KERNELS.get(contender.name, contender.kernel or "kernel")}),
        *(replays(cell, medians["forward_backward"]) if replayed(cell.batch_size, cell.heads, cell.sequence) else []),
    ]


def share_of_peak(cell: Flash) -> float:
    """The share of an H200's peak that its implementation reaches; a user's is the fastest."""
    names = [contender.name for contender in cell.contenders]
    place = names.index(cell.implementation) if cell.implementation in names else -1
    return MOST - (MOST - LEAST) * place / (len(names) - 1)


def by_the_handout(cell: Flash, median: float) -> list[Measurement]:
    """A long repetition at a lower clock, near the limit of power."""
    return [
        summarize("handout", "ms", jittered(cell, "handout", 1.04 * median, 50), keep=False),
        summarize("handout_sm_clock", "MHz", [1980.0, 1605.0, 1590.0]),
        summarize("handout_power", "W", [480.0, 695.0, 699.0]),
    ]


def replays(cell: Flash, median: float) -> list[Measurement]:
    """The host's time for a call, and the call's replay from a graph, somewhat shorter."""
    graph = summarize("graph", "ms", jittered(cell, "graph", 0.95 * median, 10))
    return [summarize("host", "us", jittered(cell, "host", 60.0, 10)), graph]
