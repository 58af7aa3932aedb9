"""Made-up training steps."""

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.fit.cells import step_setting
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from cs336_systems.training_step import PHASES_OF_MODE
from tests.samples import H200, NO_CPU_MEMORY, OOM, PEAK, jittered

SHARE = {"plain": 1.0, "flash": 0.9, "sdpa": 0.92}
"""Of the time with plain attention."""
LAUNCHES = {"forward": 30, "backward": 90, "optimizer": 1}
"""By layer."""
STAGES = {
    "inference": ["forward"],
    "forward": ["forward", "loss"],
    "forward_backward": ["forward", "loss", "backward"],
    "train_step": ["forward", "loss", "backward", "optimizer"],
}
"""The kernel profile's names for the parts of a step."""
FIRST_MS = 150
"""The extra cost of the very first step, mostly in its forward pass."""


def launch_ms(context: int) -> float:
    """The host's time for a launch, ms: 0.01 at 512 tokens, and not the same at others, so that no cells are alike."""
    return 0.01 * (context / 512) ** 0.05


def measure(cell: EndToEnd, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak or at the pace of launches; OOM where the state alone is too large."""
    shape = parse_size(cell.size)
    if on_gpu and 1.3 * state_bytes(cell.mode, shape, cell.vocab_size) > H200["gpu_memory"]:
        return [OOM]
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / (0.4 * PEAK.flops(cell.precision)) * (0.8 if cell.compiled else 1) * SHARE[cell.attention]
    phases = PHASES_OF_MODE[cell.mode]
    update = 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth
    busy = {"forward": forward, "backward": 2 * forward, "optimizer": update}
    launches = {phase: LAUNCHES[phase] * shape.num_layers // (3 if cell.compiled else 1) for phase in phases}
    laps = {
        phase: jittered(cell, phase, max(busy[phase], launch_ms(cell.context) * launches[phase]) * 1.02, cell.steps)
        for phase in phases
    }
    if cell.warmup == 0:
        laps["forward"][0] += FIRST_MS
    steps = [sum(lap) for lap in zip(*laps.values(), strict=True)]
    compiling = 1.5 * shape.num_layers if cell.compiled else 0
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[cell.precision]
    return [
        *(summarize(name, "ms", samples) for name, samples in laps.items()),
        summarize("step", "ms", steps),
        summarize("first_step", "ms", steps[:1]),
        summarize("build", "s", jittered(cell, "build", 0.5, 1)),
        summarize("warmup", "s", [compiling + cell.warmup * steps[-1] / 1e3]),
        *(device_rows({phase: busy[phase] for phase in phases}, cell) if on_gpu else CPU_ROWS),
        summarize("compiled_graphs", "", [1 if cell.compiled else 0]),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value=dtype),
    ]


CPU_ROWS = [
    NO_CPU_MEMORY,
    Measurement(metric="device_allocations", status="skipped", message="on CUDA devices only"),
    Measurement(metric="device_busy", unit="ms", status="skipped", message="on CUDA devices only"),
]


def device_rows(busy: dict[str, float], cell: EndToEnd) -> list[Measurement]:
    """The metrics of a GPU: the closed form's memory, and the launches of the kernel profile."""
    from tests.samples.kernel_profile import kernels  # which is made of this module's steps

    busy = {phase: jittered(cell, f"{phase} busy", milliseconds, 1)[0] for phase, milliseconds in busy.items()}
    return [
        summarize("peak_memory", "MiB", [peak(step_setting(cell.name, cell)).total / MIB]),
        summarize("device_allocations", "", [max(0, 200 - 99 * cell.warmup)]),
        *(summarize(f"{phase}_busy", "ms", [milliseconds]) for phase, milliseconds in busy.items()),
        summarize("device_busy", "ms", [sum(busy.values())]),
        summarize("launches", "", [sum(calls for stage in STAGES[cell.mode] for *_, calls, _ in kernels(cell, stage))]),
    ]
