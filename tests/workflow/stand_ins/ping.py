"""Takes the place of the benchmarks' launcher where there is no GPU: called like it, it writes what a GPU might say."""

import os
import sys
from pathlib import Path

from cs336_systems.experiments.ping import Ping

from cs336_systems.record.measurement import WALL, Measurement, summarize
from cs336_systems.record.rows import make_row, write_job
from tests.samples import H200, provenance


def option(name: str) -> list[str]:
    """The values behind an option of the command line."""
    rest = sys.argv[sys.argv.index(name) + 1 :]
    stop = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:stop]


def measure(cell: Ping) -> list[Measurement]:
    """All-reduces that take longer one after another."""
    times = [0.1 + 0.001 * step for step in range(cell.steps)]
    return [summarize("all_reduce", "ms", times), summarize("sum", "", [cell.processes]), summarize(WALL, "s", [1.0])]


if __name__ == "__main__":
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    assert option("--processes") == [str(processes)]
    assert option("--device") == ["cuda"]
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # from SLURM
        assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if os.environ.get("RANK", "0") == "0":
        cells = [Ping(processes=processes, numbers=int(numbers)) for numbers in option("--numbers")]
        origin = provenance(**H200 | {"gpu_count": processes})
        rows = [make_row(cell, measurement, origin) for cell in cells for measurement in measure(cell)]
        write_job(Path(option("--output")[0]), Ping, rows)
