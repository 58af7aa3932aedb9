"""Processes that run code under test, and the data they return, with limits on time and size."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
from torch import Tensor

import cs336_systems
from cs336_systems.verify import worker

LARGEST = 2**30
"""Bytes that a rank may return at a time."""
MEMORY = 16 * 2**30
"""Bytes of data that a rank may allocate on a CPU."""
GRACE_S = 3
"""How long the other ranks may take to answer once one has failed: they may wait for it in a collective."""


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception of the code under test."""

    kind: str
    message: str
    where: str
    """File, line and its text, of the code under test; empty if it was raised elsewhere."""
    triton: bool
    """Whether it came through Triton."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The results of a rank for a case, or why it has none."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)
    raised: Raised | None = None
    ended: bool = False
    """Whether its process ended, or sent an invalid answer."""
    late: bool = False
    """Whether time was up before it answered."""

    @property
    def ok(self) -> bool:
        """Whether there are results."""
        return not (self.raised or self.ended or self.late)


class Launcher:
    """A process that has imported PyTorch, from which ranks are forked; they import nothing of this project."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._control:
            self._control.close()
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def launch(self, family: str, path: str, folder: Path, log: Path, deadline: float, ranks: int) -> "Ranks":
        """Start ranks that import an implementation from a folder.

        Raises:
            ConnectionError: the process from which they are forked has ended.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._control
        gpu = ranks == 1 and torch.cuda.is_available()  # several ranks communicate over Gloo, as in the handout's tests
        launch = {"family": family, "path": path, "ranks": ranks, "gpu": gpu, "memory": MEMORY}
        pairs = [socket.socketpair() for _ in range(ranks)]
        message = json.dumps(launch | {"folder": str(folder), "log": str(log.absolute())}).encode()
        socket.send_fds(self._control, [message], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        connections = [Connection(ours.detach()) for ours, _ in pairs]
        return Ranks(connections, json.loads(self._receive()), self, deadline)

    def end(self, gone: Sequence[int]) -> list[int | None] | None:
        """End a launch; return how ranks ended that were already gone, or None if this process is gone too."""
        assert self._control
        with contextlib.suppress(ConnectionError):
            self._control.sendall(json.dumps(list(gone)).encode())
            return list(json.loads(self._receive()))
        return None

    def _receive(self) -> bytes:
        assert self._control
        if message := self._control.recv(2**16):
            return message
        raise ConnectionError("the code under test ended the process that launched it")

    def _start(self) -> None:
        self.__exit__(None, None, None)
        self._control, theirs = socket.socketpair()
        variables = os.environ | {"PYTHONPATH": str(Path(cs336_systems.__path__[0]).parent)}
        variables |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", "-m", worker.__name__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=variables, stdin=subprocess.DEVNULL, start_new_session=True
            )


class Ranks:
    """The ranks of one launch."""

    def __init__(self, connections: list[Connection], pids: list[int], launcher: Launcher, deadline: float) -> None:
        self._connections, self._pids, self._launcher, self._deadline = connections, pids, launcher, deadline
        self._gone: list[int] = []

    def __len__(self) -> int:
        return len(self._connections)

    def run(self, header: Mapping[str, Any], given: Sequence[Mapping[str, Tensor]]) -> list[Answer]:
        """Run a case; returns each rank's answer. A rank is late if time is up, or long after another one failed."""
        answers: dict[int, Answer] = {}
        for rank, connection in enumerate(self._connections):
            with contextlib.suppress(OSError):
                connection.send_bytes(worker.pack(header, given[rank]))
        deadline = self._deadline
        while waiting := [rank for rank in range(len(self)) if rank not in answers]:
            ready = wait([self._connections[rank] for rank in waiting], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [rank for rank in waiting if self._connections[rank] in ready]:
                answers[rank] = self._receive(rank)
                if not answers[rank].ok:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return [answers.get(rank, Answer(late=True)) for rank in range(len(self))]

    def _receive(self, rank: int) -> Answer:
        try:
            header, tensors = worker.unpack(self._connections[rank].recv_bytes(LARGEST))
            raised = header.get("raised")
            return Answer(tensors=tensors, counts=header.get("counts", {}), raised=Raised(**raised) if raised else None)
        except Exception:  # whatever bytes these are
            self._gone.append(rank)
            return Answer(ended=True)

    def end(self) -> list[int | None]:
        """End all ranks and their child processes; return the exit statuses of those that had already ended."""
        ends = self._launcher.end(self._gone)
        for pid in self._pids if ends is None else ():
            with contextlib.suppress(psutil.Error):
                if worker.__name__ in (rank := psutil.Process(pid)).cmdline():
                    rank.kill()
        for connection in self._connections:
            connection.close()
        return ends or [None for _ in self._gone]
