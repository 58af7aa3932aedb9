"""A process that measures on GPUs; it is replaced if a workload ends it, hangs, or leaves the GPU unusable for it.

After an illegal access or an uncorrectable memory error, a process can no longer use that GPU; another process may.
"""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from cs336_systems.benchmarks.instruments.measuring import details_of, lost, measure_work, name_of, usable, works_of
from cs336_systems.experiments.card import Card
from cs336_systems.record.measurement import Measurement
from cs336_systems.run.failure import describe_end

TIMEOUT_S = 120.0
"""Maximum seconds per workload, including compilation."""
GRACE_S = 1.0


class Begun(NamedTuple):
    """The row that a process announces before each workload, kept if the process does not return."""

    metric: str
    details: dict[str, str]


class Worker:
    """Measures in a separate process, which is started when needed, and again after a workload has ended it."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection

    def measure(self, cell: Card, device: torch.device) -> Iterator[Measurement]:
        """Measure all workloads of an instrument on one GPU. If one ends the process, only that workload is lost."""
        done = 0
        while True:
            start = Begun("fact", {"device": name_of(device), "about": cell.instrument})
            begun: Begun | None = start
            try:
                self._send((cell, device, done, torch.initial_seed()))
                while (message := self._receive()) is not None:
                    if isinstance(message, Begun):
                        begun = message
                    else:
                        yield from message
                        done, begun = done + 1, None
                return
            except (OSError, EOFError) as error:
                status = self.end()
                if begun:
                    reason = str(error) if isinstance(error, TimeoutError) else f"its process {describe_end(status)}"
                    yield lost(begun.metric, RuntimeError(reason), begun.details)
                    done += 1
                if begun is start:
                    return

    def end(self) -> int:
        """End the process, and return its exit status."""
        if self._process is None:
            return 0
        self._process.join(GRACE_S)  # If it has ended by itself, its status says how.
        self._process.kill()
        self._process.join()
        status, self._process = self._process.exitcode, None
        return status or 0

    def _send(self, asked: tuple[Card, torch.device, int, int]) -> None:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._connection.send(asked)

    def _receive(self) -> Begun | list[Measurement] | None:
        if not self._connection.poll(TIMEOUT_S):
            raise TimeoutError(f"it took longer than {TIMEOUT_S:g} s")
        message: Begun | list[Measurement] | None = self._connection.recv()
        return message


def serve(connection: Connection) -> None:
    """Serve measurement requests until there are no more or the GPU is unusable for this process."""
    torch.set_float32_matmul_precision("highest")
    while True:
        try:
            cell, device, done, seed = connection.recv()
        except EOFError:
            return
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            works = works_of(cell, device)[done:]
        except Exception as error:  # This process cannot use the GPU.
            works = []
            connection.send([lost("fact", error, {"device": name_of(device), "about": cell.instrument})])
        for work in works:
            connection.send(Begun(work.metric, details_of(work, device)))
            torch.manual_seed(seed)
            connection.send(list(measure_work(work, cell, device)))
            if not usable(device):
                return
        connection.send(None)
