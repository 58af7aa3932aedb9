"""Made-up pings."""

from cs336_systems.experiments.ping import Ping

from cs336_systems.record.measurement import Measurement, summarize
from tests.samples import jittered


def measure(cell: Ping, *, on_gpu: bool) -> list[Measurement]:
    """A time that grows with the message."""
    return [
        summarize("all_reduce", "ms", jittered(cell, "all_reduce", 0.1 + 1e-6 * cell.numbers, cell.steps)),
        summarize("sum", "", [float(cell.processes)]),
    ]
