"""Launches per second of a trivial kernel."""

from collections.abc import Iterator

import torch

from cs336_systems.benchmarks.instruments.work import Call, Work

CALLS = 1000


def works(device: torch.device) -> Iterator[Work]:
    """From the host, call by call; and on a GPU from a CUDA graph, one after another."""
    by_host = "by the host" if device.type == "cuda" else "operators"
    yield Work(name=by_host, metric="launch_rate", amount=CALLS, build=build, replayed=False)
    if device.type == "cuda":
        yield Work(name="in a CUDA graph", metric="launch_rate", amount=CALLS, build=build)


def build(device: torch.device) -> Call:
    """Add one to one number, many times."""
    number = torch.zeros(1, device=device)

    def add() -> None:
        for _ in range(CALLS):
            number.add_(1)

    return add
