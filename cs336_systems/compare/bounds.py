"""The resource that bounds a cell's time: matmul, memory, communication, the host, or unknown.

Only instruments and closed forms decide: the device's busy time in a step, the exposed communication in its profile,
the categories of its kernels, and its FLOPs per byte against the GPU's peaks.
"""

from collections.abc import Mapping
from typing import Any, Literal

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.accounting.transformer import step_flops
from cs336_systems.accounting.units import BYTES
from cs336_systems.compare.cells import Cell
from cs336_systems.compare.speed import LONG_ANYWHERE_MS, host_bound
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.card import Card
from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.validation import Row
from cs336_systems.sizes import parse_size

Bound = Literal["matmul", "memory", "communication", "host", "unknown"]

EXPOSED = 0.1
"""Communication with a larger share of a step, not hidden behind compute, bounds it."""
WELL_USED = 0.5
"""If matmuls reach a larger share of their peak rate, they bound the step; such a device does not wait for the host."""
CATEGORY_BOUND: Mapping[str, Bound] = {
    "matmul": "matmul",
    "attention": "matmul",
    "communication": "communication",
    **dict.fromkeys(("softmax", "elementwise", "reduction", "normalization", "copy", "optimizer"), "memory"),
}
METRIC_BOUND: Mapping[str, Bound] = {
    "host": "host",
    "optimizer": "memory",
    "update": "memory",
    "copy_speed": "memory",
    "matmul_rate": "matmul",
}
CARD_BOUND: Mapping[str, Bound] = {
    "matmul": "matmul",
    "attention": "matmul",
    "memory": "memory",
    "transfers": "communication",
    "all_reduce": "communication",
}
"""The bound of each of the card's instruments."""
ON_DEVICE = ("kernel", "graph", "handout", "floor", "copy_speed", "matmul_rate")
"""Metrics of pure device time."""


def bound(cell: Cell, row: Row) -> Bound:
    """The resource that bounds a row's time; unknown if no instrument shows it, and on a CPU."""
    if not row.gpu:
        return "unknown"
    if cell.experiment is Card and device_bound(cell, row):
        return CARD_BOUND.get(getattr(row, "instrument", ""), "unknown")
    if not device_bound(cell, row):
        return "host" if device_bound(cell, row) is False else "unknown"
    if cell.experiment is AllReduce:
        return "communication"
    if row.metric in METRIC_BOUND:
        return METRIC_BOUND[row.metric]
    if row.metric == "kernel":
        return CATEGORY_BOUND.get(getattr(row, "category", ""), "unknown")
    if exposed_communication(cell, row) > EXPOSED:
        return "communication"
    if cell.experiment in (Flash, Attention):
        return attention_bound(row)
    share = utilization(row)
    return "matmul" if share is not None and share > WELL_USED else "unknown"


def device_bound(cell: Cell, row: Row) -> bool | None:
    """Whether a row is device-bound, not host-bound; None if no instrument shows it."""
    if row.metric in ("host", "launch_rate"):
        return False
    if cell.experiment is Card:
        return True
    if cell.experiment is AllReduce:  # Gloo's collectives run on the CPU, next to any GPU.
        return bool(getattr(row, "gpu_count", 0))
    if row.metric in ON_DEVICE or row.metric.endswith("_busy"):
        return True
    share = busy_share(cell, row)
    if share is not None:
        return not host_bound(1.0, share)
    if cell.experiment.name == "flash":
        host = cell.median("host")
        if host is not None:
            return not host_bound(row.median or 0.0, host=host / 1e3)
        return True if (row.median or 0.0) > LONG_ANYWHERE_MS else None
    used = utilization(row)
    return True if used is not None and used > WELL_USED else None


def busy_share(cell: Cell, row: Row) -> float | None:
    """The share of a row's time in which the device is busy, if it was profiled."""
    if not row.median:
        return None
    if cell.experiment.name == "flash":
        graph, both = cell.median("graph"), cell.median("forward_backward")
        return graph / both if graph and both else None
    profiled = cell.median("timeline_length", row)
    busy = cell.median(f"{row.metric}_busy", row) or (cell.median("device_busy", row) if row.metric == "step" else None)
    # With the profiler, a step takes longer, and the device also waits for it.
    return busy / (profiled or row.median) if busy else None


def exposed_communication(cell: Cell, row: Row) -> float:
    """The share of a profiled step in which only collectives run."""
    busy, compute = cell.median("device_busy", row), cell.median("compute", row)
    length = cell.median("timeline_length", row)
    return (busy - compute) / length if busy and compute and length else 0.0


def attention_bound(row: Any) -> Bound:
    """Classify attention by its FLOPs per byte: the roofline's ridge separates matmul from memory.

    Fused kernels read and write only vectors; plain attention also moves its scores, at least twice per pass.
    """
    gpu = gpu_of(row.gpu)
    if gpu is None:
        return "unknown"
    heads, causal = getattr(row, "heads", 1), getattr(row, "causal", False)
    plain = getattr(row, "implementation", "plain").startswith("plain")
    rows, size = row.batch_size * heads * row.sequence, BYTES[row.precision]
    numbers = 4 * rows * row.d + (4 * rows * row.sequence if plain else 0)
    flops = flash_flops("forward", row.batch_size, heads, row.sequence, row.d, causal=causal)
    return "matmul" if flops / (size * numbers) > gpu.flops(row.precision) / gpu.bandwidth else "memory"


def utilization(row: Any) -> float | None:
    """Matmul FLOPs of a model's step or pass relative to the GPU's dense peak; None if either is not known."""
    gpu = gpu_of(row.gpu)
    if gpu is None or not all(hasattr(row, name) for name in ("size", "vocab_size", "batch_size", "context")):
        return None
    passes = {"forward": 1, "backward": 2, "step": 3, "device_busy": 3}
    if row.metric not in passes or row.unit != "ms":
        return None
    whole = getattr(row, "mode", "train_step") in ("train_step", "forward_backward") or row.metric != "step"
    forward = step_flops("forward", parse_size(row.size), row.vocab_size, row.batch_size, row.context)
    flops = forward * (passes[row.metric] if whole else 1)
    precision = getattr(row, "precision", "bf16")
    return float(flops / (row.median / 1e3) / gpu.flops(precision))
