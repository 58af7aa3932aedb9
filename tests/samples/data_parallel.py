"""Made-up data-parallel training."""

from cs336_systems.accounting.contenders import total
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.transformer import parameters, state_bytes, step_flops
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.data_parallel import PHASE_STEPS, TIMELINE_PARTS, DataParallelTraining
from cs336_systems.fit.cells import contender_setting
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import NO_CPU_MEMORY, PEAK, jittered, observed
from tests.samples.all_reduce import BUS, OVERHEAD_MS

EXPOSED = {
    ("naive", ""): 1.0,
    ("flat", ""): 0.98,
    ("overlapped", ""): 0.9,
    ("bucketed", "1"): 0.88,
    ("bucketed", "10"): 0.84,
    ("bucketed", "100"): 0.8,
    ("bucketed", "1000"): 0.86,
    ("symmetric_memory", "100"): 0.25,
    ("symmetric_memory", "400"): 0.27,
    ("ddp", "25"): 0.95,
    ("ddp_view", "25"): 0.85,
    ("ddp_view", "100"): 0.79,
    ("ddp_view", "400"): 0.82,
}
"""The share of the communication that a step waits for, by wrapper and bucket size."""
TRIED = {
    ("grouped", "100"): 0.7,
    ("small_last", "100"): 0.78,
    ("priority", "100"): 0.81,
    ("bf16_wire", "100"): 0.5,
    ("optimizer_overlap", "100"): 0.6,
}
LAUNCH_MS = 0.3
"""The host's time for a layer; compiled, a third of it."""
NOT_ON_CPU = [
    NO_CPU_MEMORY,
    Measurement(metric="device_busy", unit="ms", status="skipped", message="on CUDA devices only"),
]
NO_PRIORITY = Measurement(
    metric="step",
    unit="ms",
    status="skipped",
    message="gloo has no streams that could have a priority; only NCCL has",
    details={"wrapper": "priority", "bucket_mb": "100"},
)


def measure(cell: DataParallelTraining, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak, and of each wrapper's communication a share in addition."""
    contenders = {("none", ""): 0.0, **EXPOSED, **(TRIED if cell.tried else {})}
    if not on_gpu:
        contenders.pop(("priority", "100"), None)
    rows = [row for contender in contenders.items() for row in contender_rows(cell, *contender, on_gpu=on_gpu)]
    return rows if on_gpu else [*rows, *NOT_ON_CPU, *([NO_PRIORITY] if cell.tried else [])]


def contender_rows(
    cell: DataParallelTraining, contender: tuple[str, str], exposed: float, *, on_gpu: bool
) -> list[Measurement]:
    """All that is measured of a wrapper."""
    wrapper, bucket = contender
    details = {"wrapper": wrapper, "bucket_mb": bucket}
    shape = parse_size(cell.size)
    size = FP32_BYTES * parameters(shape, cell.vocab_size) / 1e6
    backend = "nccl" if on_gpu else "gloo"
    ring = 2 * (cell.processes - 1) / cell.processes
    key = f"{wrapper} {bucket}".strip()
    declared = next(each for each in cell.contenders if each.key == key)
    (messages, _), _ = total(declared.sends(cell))
    sent = size / 2 if wrapper == "bf16_wire" else size
    communication = messages * OVERHEAD_MS[backend] + 1e9 * ring * sent / BUS[backend] if exposed else 0.0

    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    launches = LAUNCH_MS * shape.num_layers / (3 if cell.compiled else 1)
    forward = max(1e3 * flops / (0.4 * PEAK.flops(cell.precision)), launches)
    update = 1e3 * state_bytes("train_step", shape, cell.vocab_size) / PEAK.bandwidth
    baseline = 3 * forward + update
    waits = exposed * communication
    step = jittered(cell, f"step {contender}", baseline + waits, cell.rounds * cell.steps)
    phases = {"forward": forward, "backward": 2 * forward}
    if not wrapper.startswith("ddp") and wrapper != "none":
        phases["synchronization"] = waits
    if wrapper != "optimizer_overlap":
        phases["optimizer"] = update
    rows = [
        *observed(cell, details),
        summarize("step", "ms", step, details=details),
        *(
            summarize(name, "ms", jittered(cell, f"{name} {contender}", time, PHASE_STEPS), details=details)
            for name, time in phases.items()
        ),
    ]
    if wrapper != "none":
        rows.append(summarize("communicated", "MB", [sent], details=details))
        if not wrapper.startswith("ddp"):
            rows.append(summarize("messages", "", [messages], details=details))
    if wrapper == "bf16_wire":
        rows.append(summarize("gradient_error", "", [2.4e-3], details=details))
    if on_gpu:
        rows += device_rows(cell, details, baseline, communication, waits)
        memory = peak(contender_setting(cell.name, cell, declared)).total
        rows.append(summarize("peak_memory", "MiB", [memory / MIB], details=details))
        if wrapper != "none":
            outside = 1e6 * size if wrapper == "symmetric_memory" else 0
            rows.append(summarize("outside_memory", "MiB", [outside / MIB], details=details))
    return rows


def device_rows(
    cell: DataParallelTraining, details: dict[str, str], baseline: float, communication: float, waits: float
) -> list[Measurement]:
    """A step that computes until the optimizer's turn, and communicates shortly before that and then alone."""
    hidden = communication - waits
    length = baseline + waits
    times = {
        "device_busy": length,
        "compute": baseline,
        "communication": communication,
        "hidden": hidden,
        "timeline_length": length,
    }
    backward_ends = 0.8 * baseline
    parts = [
        ("compute", 0.0, backward_ends),
        ("communication", backward_ends - hidden, backward_ends + waits),
        ("optimizer", backward_ends + waits, length),
    ]
    moments = [(part + 0.5) * length / TIMELINE_PARTS for part in range(TIMELINE_PARTS)]
    return [
        *(summarize(name, "ms", [time], details=details) for name, time in times.items()),
        *(
            summarize(
                "timeline",
                "share",
                [float(start <= moment < end) for moment in moments],
                details={**details, "kind": kind},
            )
            for kind, start, end in parts
        ),
    ]
