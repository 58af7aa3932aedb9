"""Made-up training, sharded and not."""

from cs336_systems.accounting.accelerators import Accelerator
from cs336_systems.accounting.fsdp import FullySharded, waiting_seconds
from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.accounting.units import FP32_BYTES, MIB
from cs336_systems.experiments.data_parallel import PHASE_STEPS, TIMELINE_PARTS
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.fit.cells import contender_setting
from cs336_systems.record.measurement import Measurement, summarize
from cs336_systems.sizes import parse_size
from tests.samples import NO_CPU_MEMORY, PEAK, jittered, observed

BANDWIDTH = {True: 300e9, False: 1e9}
"""Bytes/s that a rank sends, on a GPU and on a CPU."""
WHOLE = {"none": 0.0, "symmetric_memory": 0.25, "sharded_optimizer": 0.35}
"""The share of the communication that a step waits for, where the weights are whole."""
SHARDED = {"fsdp": 1.0, "fsdp_blocks": 1.1, "fully_shard": 4.0}
"""A step's waiting time over that of the closed form; half of it is in the forward pass."""
NOT_ON_CPU = [
    NO_CPU_MEMORY,
    Measurement(metric="device_busy", unit="ms", status="skipped", message="on CUDA devices only"),
]


def measure(cell: FullyShardedTraining, *, on_gpu: bool) -> list[Measurement]:
    """Steps at 40 % of an H200's peak; no unsharded step of the largest model fits."""
    rows = [] if on_gpu else list(NOT_ON_CPU)
    for wrapper in (*WHOLE, *SHARDED):
        if cell.size == "10B" and wrapper in WHOLE:
            message = "each process needs 230.1 GB of memory, and 148.2 GB are free"
            details = {"wrapper": wrapper}
            rows.append(Measurement(metric="step", unit="ms", status="skipped", message=message, details=details))
        else:
            rows += contender_rows(cell, wrapper, on_gpu=on_gpu)
    return rows


def contender_rows(cell: FullyShardedTraining, wrapper: str, *, on_gpu: bool) -> list[Measurement]:
    """All that is measured of a contender."""
    details = {"wrapper": wrapper}
    shape = parse_size(cell.size)
    weights = FP32_BYTES * parameters(shape, cell.vocab_size)
    model = FullySharded(
        shape=shape,
        vocab_size=cell.vocab_size,
        ranks=cell.processes,
        precision=cell.precision,
        by_block=wrapper in ("fsdp_blocks", "fully_shard"),
    )
    rates = Accelerator(
        name="made up", flops=0.4 * PEAK.flops(cell.precision), bandwidth=BANDWIDTH[on_gpu], memory=141e9
    )
    tokens = cell.batch_size * cell.context
    flops = step_flops("forward", shape, cell.vocab_size, cell.batch_size, cell.context)
    forward = 1e3 * flops / rates.flops
    gathers = [1e3 * unit.communication for unit in model.forward(tokens, rates)]
    if wrapper in SHARDED:
        communication = 1e3 * model.sent_in_a_step / rates.bandwidth
        gather_ms, scatter_ms = communication * 2 / 3, communication / 3
        waits = min(SHARDED[wrapper] * 2e3 * waiting_seconds(model.forward(tokens, rates)), communication)
        update = 1e3 * model.state / PEAK.bandwidth
    else:
        communication = 1e3 * weights / rates.bandwidth if wrapper != "none" else 0.0
        gather_ms, scatter_ms = 0.0, 0.0
        waits = WHOLE[wrapper] * communication
        update = 4e3 * weights / PEAK.bandwidth / (cell.processes if wrapper == "sharded_optimizer" else 1)
    baseline = 3 * forward + update
    step = jittered(cell, f"step {wrapper}", baseline + waits, cell.rounds * cell.steps)
    phases = {"forward": forward + waits / 2, "backward": 2 * forward + waits / 2}
    if wrapper not in ("none", "fully_shard"):
        phases["synchronization"] = 0.1
    phases["optimizer"] = update
    rows = [*observed(cell, details), summarize("step", "ms", step, details=details)]
    for name, time in phases.items():
        laps = jittered(cell, f"{name} {wrapper}", time, PHASE_STEPS)
        rows.append(summarize(name, "ms", laps, details=details))
    if not on_gpu:
        return rows
    kinds = {"": communication, "all_gather": gather_ms, "reduce_scatter": scatter_ms}
    rows += profile_rows(details, kinds, baseline, waits)
    rows += memory_rows(cell, model, wrapper, details)
    if wrapper in SHARDED:
        rows += forward_rows(details, gathers, forward + waits / 2, waits / 2)
    return rows


def profile_rows(details: dict[str, str], kinds: dict[str, float], baseline: float, waits: float) -> list[Measurement]:
    """A step that communicates from its beginning on, as long as it has to, and waits at its end."""
    length, communication = baseline + waits, kinds[""]
    rows = [
        summarize(name, "ms", [time], details=details)
        for name, time in {"device_busy": length, "compute": baseline, "timeline_length": length}.items()
    ]
    for kind, time in kinds.items():
        hidden = time * (communication - waits) / communication if communication else 0.0
        rows.append(summarize("communication", "ms", [time], details=details | {"kind": kind}))
        rows.append(summarize("hidden", "ms", [hidden], details=details | {"kind": kind}))
    others = communication - kinds["all_gather"] - kinds["reduce_scatter"]
    begins = length - communication
    parts = [("compute", 0.0, 0.9 * baseline), ("optimizer", 0.9 * baseline, baseline)]
    for kind, time in (
        ("all_gather", kinds["all_gather"]),
        ("reduce_scatter", kinds["reduce_scatter"]),
        ("communication", others),
    ):
        parts.append((kind, begins, begins + time))
        begins += time
    moments = [(part + 0.5) * length / TIMELINE_PARTS for part in range(TIMELINE_PARTS)]
    for kind, start, end in parts:
        shares = [float(start <= moment < end) for moment in moments]
        rows.append(summarize("timeline", "share", shares, details=details | {"kind": kind}))
    return rows


def memory_rows(
    cell: FullyShardedTraining, model: FullySharded, wrapper: str, details: dict[str, str]
) -> list[Measurement]:
    """The closed forms' bytes."""
    weights = FP32_BYTES * parameters(model.shape, cell.vocab_size)
    (declared,) = [each for each in cell.contenders if each.name == wrapper]
    known = peak(contender_setting(cell.name, cell, declared)).total
    kept = model.weights + model.moments if wrapper in SHARDED else 3 * weights
    if wrapper == "sharded_optimizer":
        known -= weights  # in symmetric memory, which is not the allocator's
        kept -= 2 * weights * (cell.processes - 1) // cell.processes
    sizes = {"peak_memory": known, "between_steps": kept}
    if wrapper != "none":
        sizes["outside_memory"] = weights if wrapper in WHOLE else 0
    if cell.size == "10B":
        sizes.pop("outside_memory")
    return [summarize(name, "MiB", [size / MIB], details=details) for name, size in sizes.items()]


def forward_rows(details: dict[str, str], gathers: list[float], length: float, waits: float) -> list[Measurement]:
    """All-gathers one after another, each there long before its unit, but for the first one."""
    ends = [sum(gathers[: index + 1]) for index in range(len(gathers))]
    ready = [length * index / len(gathers) for index in range(len(gathers))]
    series = {
        "forward_length": [length],
        "forward_gathers": [sum(gathers)],
        "forward_hidden": [max(sum(gathers) - waits, 0.0)],
        "gather_begins": [end - time for end, time in zip(ends, gathers, strict=True)],
        "gather_ends": ends,
        "needed": ready,
        "begins": [max(pair) for pair in zip(ready, ends, strict=True)],
    }
    return [summarize(name, "ms", samples, details=details) for name, samples in series.items()]
