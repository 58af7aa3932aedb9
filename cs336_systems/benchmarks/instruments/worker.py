"""A process that measures on GPUs, and is replaced where a work ends it, hangs, or leaves the GPU unusable for it.

After an illegal access or an uncorrectable memory error, a process can use that GPU no more; another process may.
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
"""Seconds that one work may take, compilation included."""
GRACE_S = 1.0


class Begun(NamedTuple):
    """The row that a process announces before each work, kept if it does not come back."""

    metric: str
    details: dict[str, str]


class Worker:
    """Measures in a process of its own, which is started when it is needed, and again after a work has ended it."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection

    def measure(self, cell: Card, device: torch.device) -> Iterator[Measurement]:
        """Measure all works of an instrument on one GPU. A work that ends the process costs only itself."""
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
        self._process.join(GRACE_S)  # One that has ended by itself has a status that says how.
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
    """Measure what is asked for, until nobody asks any more or the GPU is unusable for this process."""
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
        except Exception as error:  # The GPU is not there for this process.
            works = []
            connection.send([lost("fact", error, {"device": name_of(device), "about": cell.instrument})])
        for work in works:
            connection.send(Begun(work.metric, details_of(work, device)))
            torch.manual_seed(seed)
            connection.send(list(measure_work(work, cell, device)))
            if not usable(device):
                return
        connection.send(None)
