"""Made-up all-reduces."""

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.record.measurement import Measurement, summarize
from tests.samples import jittered

OVERHEAD_MS = {"gloo": 0.2, "nccl": 0.03}
BUS = {"gloo": 2e9, "nccl": 340e9}
"""Bytes/s on the bus, which the processes share on a CPU."""


def measure(cell: AllReduce, *, on_gpu: bool) -> list[Measurement]:
    """An overhead for each process, and the ring's bytes at a constant rate."""
    size = 1e6 * cell.megabytes
    share = 2 * (cell.processes - 1) / cell.processes
    shared = cell.processes / 2 if cell.backend == "gloo" else 1
    milliseconds = cell.processes / 2 * OVERHEAD_MS[cell.backend] + 1e3 * share * size * shared / BUS[cell.backend]
    times = jittered(cell, "time", milliseconds, cell.steps)
    bandwidths = [size / time / 1e6 for time in times]
    return [
        summarize("wrong_numbers", "", [0.0, 0.0]),
        summarize("time", "ms", times),
        summarize("rank_spread", "ms", [0.02 * time for time in times]),
        summarize("algorithm_bandwidth", "GB/s", bandwidths, keep=False),
        summarize("bus_bandwidth", "GB/s", [share * bandwidth for bandwidth in bandwidths], keep=False),
    ]
