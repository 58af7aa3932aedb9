"""Time an all-reduce of fp32 numbers between processes, after a check of its sum.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks all_reduce --megabytes 1 10
"""

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.benchmarks.ranks import check_memory, gather
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.measure.timing import Stopwatch, no_garbage_collection
from cs336_systems.record.measurement import Measurement, summarize

MB = 10**6
BLOCK = 1_000_003
"""Period of a contribution, in elements: a prime, so that no chunks of a library coincide with it."""
LARGEST = 1000
"""Contributions are integers up to this, whose sums are exact in fp32 in any order."""


def measure(cell: AllReduce, device: torch.device) -> list[Measurement]:
    """Measure each all-reduce's time on the slowest rank, and bandwidths.

    If the sum is wrong before timing, nothing is timed; wrong elements are counted.
    """
    # Gloo's ring stages one of n chunks, and NCCL allocates its buffers when it starts.
    check_memory(round(cell.megabytes * MB * (1 + 1 / cell.processes)), device)
    blocks = torch.stack([contribution(rank) for rank in range(cell.processes)])
    mine, total = blocks[dist.get_rank()].to(device), blocks.sum(0).to(device)
    numbers = torch.empty(cell.megabytes * MB // FP32_BYTES, device=device)
    fill(numbers, mine)
    dist.all_reduce(numbers)
    wrong = [most_wrong(numbers, total)]
    if wrong[0]:
        return [summarize("wrong_numbers", "", wrong)]
    by_rank = gather(time_all_reduces(numbers, mine, cell, device), device)
    wrong.append(most_wrong(numbers, total))  # of the last one timed
    laps = list(zip(*by_rank, strict=True))
    slowest = [max(lap) for lap in laps]
    # Bytes that each process sends per byte of its contribution in the ring algorithm: bus bandwidth is comparable with
    # a link's for any number of processes (NVIDIA, nccl-tests).
    bus_share = 2 * (cell.processes - 1) / cell.processes
    bandwidths = [cell.megabytes * MB / seconds / 1e9 for seconds in slowest]
    return [
        summarize("wrong_numbers", "", wrong),
        summarize("time", "ms", [1e3 * seconds for seconds in slowest]),
        summarize("rank_spread", "ms", [1e3 * (max(lap) - min(lap)) for lap in laps]),
        summarize("algorithm_bandwidth", "GB/s", bandwidths, keep=False),
        summarize("bus_bandwidth", "GB/s", [bus_share * bandwidth for bandwidth in bandwidths], keep=False),
    ]


def contribution(rank: int) -> Tensor:
    """Make the repeated numbers, [BLOCK] fp32, of a rank's contribution; every rank can compute every other rank's."""
    generator = torch.Generator().manual_seed(torch.initial_seed() + rank)
    return torch.randint(-LARGEST, LARGEST + 1, (BLOCK,), generator=generator, dtype=torch.float32)


def fill(numbers: Tensor, block: Tensor) -> None:
    """Repeat a block of numbers, in place, up to the end."""
    for part in numbers.split(BLOCK):
        part.copy_(block[: len(part)])


def most_wrong(numbers: Tensor, block: Tensor) -> float:
    """Count elements that differ from the repeated block, on the rank with the most."""
    wrong = sum(int((part != block[: len(part)]).sum()) for part in numbers.split(BLOCK))
    return max(rank[0] for rank in gather([wrong], numbers.device))


def time_all_reduces(numbers: Tensor, mine: Tensor, cell: AllReduce, device: torch.device) -> list[float]:
    """Time all-reduces on this rank, each from a barrier until the device is idle; in seconds.

    Each all-reduce sums the original contributions; the last sum is kept.
    """
    stopwatch = Stopwatch(device)
    seconds = []
    with no_garbage_collection():
        for _ in range(cell.warmup + cell.steps):
            fill(numbers, mine)
            dist.barrier()
            stopwatch.lap()
            dist.all_reduce(numbers)
            seconds.append(stopwatch.lap())
    return seconds[cell.warmup :]
