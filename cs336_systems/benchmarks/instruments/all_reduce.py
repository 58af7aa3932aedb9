"""All-reduce between each pair of GPUs, or between two threads of a CPU."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from cs336_systems.benchmarks.instruments.work import Call, Work, WrongResults

BYTES = {"cuda": 2**28, "cpu": 2**24}
TIMEOUT = timedelta(seconds=60)


def works(device: torch.device) -> Iterator[Work]:
    """This GPU with each later one, so that over all GPUs each pair is measured once."""
    pairs = [("", build_gloo)]
    if device.type == "cuda":
        others = range(device.index + 1, torch.cuda.device_count())
        pairs = [(f"{device.index}-{other}", partial(build_nccl, other)) for other in others]
    for gpus, build in pairs:
        yield Work(
            name="NCCL, two GPUs" if gpus else "Gloo, two threads",
            metric="bandwidth",
            amount=1e-9 * BYTES[device.type],
            build=build,
            replayed=False,
            gpus=gpus,
        )


def build_nccl(other: int, device: torch.device) -> Call:
    """Sum two GPUs' data with NCCL, launched by one process, and check the sums."""
    devices = (device, torch.device("cuda", other))
    inputs = [torch.full((BYTES["cuda"] // 4,), 1.0 + number, device=each) for number, each in enumerate(devices)]
    outputs = [torch.empty_like(each) for each in inputs]

    def reduce() -> None:
        torch.cuda.nccl.all_reduce(inputs, outputs)

    reduce()
    for each in devices:
        torch.cuda.synchronize(each)
    if wrong := sum(int((output != 3).sum()) for output in outputs):
        raise WrongResults(wrong, f"{wrong} sums are wrong")
    return reduce


def build_gloo(device: torch.device) -> Call:
    """Sum two threads' data with Gloo, over the loopback interface as between processes, and check the sums."""
    store, threads = HashStore(), ThreadPoolExecutor(max_workers=2)
    joined = [threads.submit(dist.ProcessGroupGloo, store, rank, 2, TIMEOUT) for rank in range(2)]
    groups: list[Any] = [each.result() for each in joined]
    numbers = [torch.full((BYTES["cpu"] // 4,), 1.0 + rank, device=device) for rank in range(2)]

    def reduce() -> None:
        both = zip(groups, numbers, strict=True)
        for each in [threads.submit(group.allreduce([tensor]).wait) for group, tensor in both]:
            each.result()

    reduce()
    if wrong := sum(int((each != 3).sum()) for each in numbers):
        raise WrongResults(wrong, f"{wrong} sums are wrong")
    for each in numbers:
        each.zero_()
    return reduce
