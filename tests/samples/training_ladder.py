"""Made-up ladders of training steps."""

import dataclasses

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.training_ladder import (
    load_of,
    matmul_flops,
    pass_bytes,
    step_flops,
    update_bytes,
)
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.training_ladder import FIRST, TrainingLadder, rungs_of
from cs336_systems.fit.cells import rung_setting
from cs336_systems.record.measurement import Measurement, summarize
from tests.samples import NO_CPU_MEMORY, PEAK, jittered

FASTER = {
    "fp32": 12.0,
    "autocast": 2.4,
    "attention": 1.9,
    "masters": 1.75,
    "compiled": 1.35,
    "fused": 1.28,
    "graph": 1.12,
    "overlap": 1.08,
    "fp8": 0.9,
    "checkpoint": 1.3,
    "no_attention": 1.5,
    "no_masters": 1.2,
    "no_fused": 1.14,
    "no_graph": 1.25,
    "data_parallel": 1.3,
    "sharded": 1.2,
    "fsdp": 1.6,
}
"""Time of a rung's step over the floor."""
COPY = 4.2e12
RATE = 0.62
"""Share of the peak that matmuls reach alone."""
NEEDS_GRAPH = "a CUDA graph needs a CUDA device"


def measure(cell: TrainingLadder, *, on_gpu: bool) -> list[Measurement]:
    """Steps at multiples of a floor at 62 % of an H200's peak."""
    rungs = [rung for rung in rungs_of(cell.rungs) if on_gpu or not rung.graph]
    if cell.part == "training":
        return [summarize("entropy", "nat", [1.09]), *(row for rung in rungs for row in learning(cell, rung))]
    load = load_of(cell.size, cell.batch_size, cell.context, cell.vocab_size)
    rate = RATE * PEAK.flops("bf16")
    parts = {
        "matmuls": matmul_flops(load) / rate,
        "attention": (step_flops(load) - matmul_flops(load)) / rate,
        "update": update_bytes(load) / COPY,
        "norms and elementwise": pass_bytes(load) / COPY,
    }
    floor = 1e3 * sum(parts.values())
    rows = []
    for rung in rungs:
        step = FASTER[rung.name] * floor
        details = {"rung": rung.name}
        bf16 = "bfloat16"
        rows += [
            summarize("step", "ms", jittered(cell, rung.name, step, cell.steps), details=details),
            summarize("setup", "s", [3.0], details=details),
            dtype("weights_dtype", bf16 if rung.precision == "bf16" else "float32", rung.name),
            dtype("attention_dtype", "float32" if rung is FIRST else bf16, rung.name),
        ]
        if on_gpu:
            rows += [
                summarize("device_busy", "ms", [step * (0.99 if rung.graph else 0.9)], details=details),
                summarize("launches", "", [1000 if rung.graph else 3000], details=details),
                summarize("energy", "J", [0.6 * step], details=details),
                summarize("peak_memory", "MiB", [peak(rung_setting(cell, rung.name)).total / MIB], details=details),
            ]
        else:
            rows.append(dataclasses.replace(NO_CPU_MEMORY, details=details))
    if cell.part == "processes":
        return [*rows, Measurement(metric="order", unit="order", n=1, value="interleaved")]
    if not on_gpu:
        skipped = [rung for rung in rungs_of(cell.rungs) if rung.graph]
        rows += [
            Measurement(metric="step", unit="ms", status="skipped", message=NEEDS_GRAPH, details={"rung": rung.name})
            for rung in skipped
        ]
    rows += [
        summarize("floor", "ms", jittered(cell, work, 1e3 * seconds, 5), details={"work": work})
        for work, seconds in parts.items()
    ]
    return [
        *rows,
        summarize("copy_speed", "GB/s", [COPY / 1e9]),
        summarize("matmul_rate", "TFLOP/s", jittered(cell, "rate", 51, 5), details={"work": "fp32"}),
        Measurement(metric="order", unit="order", n=1, value="interleaved"),
    ]


def learning(cell, rung) -> list[Measurement]:
    """A training that ends near the entropy."""
    details = {"rung": rung.name}
    losses = [1.25, 1.26, 1.27, 1.24, 1.26] if rung is FIRST else [1.255]
    rows = [
        summarize("loss_after", "nat", losses, details=details),
        summarize("identical", "", [1], details=details),
    ]
    return rows if rung is FIRST else [*rows, summarize("gradient_error", "", [0.006], details=details)]


def dtype(metric: str, name: str, rung: str) -> Measurement:
    """A type that was seen."""
    return Measurement(metric=metric, unit="dtype", n=1, value=name, details={"rung": rung})
