"""A process that has imported PyTorch, from which a CPU's jobs are forked: the import takes longer than most jobs.

Launch: python -m cs336_systems.run.warm SOCKET

The rules start it for a run on a CPU and name its socket in the environment variable WARM. A forked job is a separate
process, like a started one, with its own memory, files and exit status. Without a socket, jobs are started.
"""

import contextlib
import dataclasses
import faulthandler
import importlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cs336_systems.lifeline import run_is_over

WARM = "CS336_SYSTEMS_WARM"
MODULES = (
    *("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.optim"),
    *("torch.distributed.run", "cs336_systems.benchmarks.command_line"),
)
LONGEST = 2**20
"""Bytes of a request: a command and an environment."""


class Forked:
    """A job forked from the warm process; its session has its process id."""

    def __init__(self, address: str, command: Sequence[str], environment: Mapping[str, str]):
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        request = json.dumps([list(command), dict(environment)]).encode()
        socket.send_fds(self._connection, [request], [0, 1, 2])
        self.pid = int(self._connection.recv(20))

    def wait(self) -> int:
        """Wait for its end; return its exit status, or a signal's number times -1."""
        with self._connection:
            return int(self._connection.recv(20) or 1)


def serve(address: str) -> None:
    """Fork jobs, one at a time, until the run is over.

    multiprocessing ends each without tearing down the modules that it shares with this process, which takes a second.
    """
    forks = multiprocessing.get_context("fork")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Snakemake's standard input, whose end then ends this process
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        for module in MODULES:
            importlib.import_module(module)
        importlib.import_module("cs336_systems.record.provenance").torch_files()  # cached for all jobs
        listener.settimeout(1)
        while not run_is_over():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(BrokenPipeError):
                    request, files, *_ = socket.recv_fds(connection, LONGEST, 3)
                    job = forks.Process(target=run, args=(*json.loads(request), files, listener))
                    job.start()
                    for file in files:
                        os.close(file)
                    connection.sendall(f"{job.pid}".encode())
                    job.join()
                    connection.sendall(f"{job.exitcode}".encode())


def run(command: Sequence[str], environment: Mapping[str, str], files: Sequence[int], listener: socket.socket) -> None:
    """Become a job: `python -m MODULE ...` or `torchrun ... -m MODULE ...`, with its environment and standard files."""
    listener.close()
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    program, *arguments = command
    if program == "torchrun":
        from torch.distributed import run as torchrun
        from torch.distributed.launcher.api import elastic_launch

        def fork_ranks(config: Any, entrypoint: object) -> elastic_launch:
            return elastic_launch(dataclasses.replace(config, start_method="fork"), run_as_rank)

        vars(torchrun)["elastic_launch"] = fork_ranks
        torchrun.main(arguments)
    else:
        run_module(*arguments)


def run_as_rank(unbuffered: str, *arguments: str) -> None:
    """Act like the program that torchrun would start, `python -u -m MODULE ARGUMENTS`."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # torchrun's, which was not set when PyTorch was imported
    run_module(*arguments)


def run_module(option: str, module: str, *arguments: str) -> None:
    """Act like `python -m MODULE ARGUMENTS`."""
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1])
