"""Tests that run on every rank of a launch: two or four processes, started once, serve all tests of a session."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import multiprocessing
import multiprocessing.connection
import os
import runpy
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

PROCESSES = 2
COLLECTIVE_TIMEOUT = timedelta(seconds=60)
LAST_WORDS_SECONDS = 3
"""How long the others have to say what went wrong once a rank has failed."""


def on_all_ranks(test, ranks="ranks"):
    """Run a test's body on every rank, over Gloo and, with two GPUs, over NCCL. It is passed `device`, the rank's own.

    Random numbers are seeded with the rank: ranks differ, unless they see to it that they do not. A test may take
    parameters, which have to be picklable, but no fixtures. `ranks` is the fixture with the processes.
    """

    @functools.wraps(test)
    def launch(**parameters):
        parameters.pop(ranks).run(test.__module__, test.__name__, parameters)

    names = [name for name in inspect.signature(test).parameters if name != "device"]
    kind = inspect.Parameter.KEYWORD_ONLY
    launch.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in [ranks, *names]])
    launch.body = test
    return launch


on_cpu_ranks = functools.partial(on_all_ranks, ranks="cpu_ranks")
on_four_ranks = functools.partial(on_all_ranks, ranks="four_ranks")
on_two_and_on_four_ranks = functools.partial(on_all_ranks, ranks="two_and_four_ranks")


@pytest.fixture(scope="session")
def groups(tmp_path_factory):
    """The processes of a backend and number, which are started when the first test needs them."""
    started = {}

    def find(backend, number):
        if (backend, number) not in started:
            started[backend, number] = Ranks(backend, number, tmp_path_factory)
        return started[backend, number]

    yield find
    for ranks in started.values():
        ranks.stop()


BACKENDS = {"gloo": (), "nccl": (pytest.mark.gpu,)}


def processes(*numbers, backends=BACKENDS):
    """A fixture with each number of processes, in turn."""
    launches = [
        pytest.param(
            (backend, number),
            id=f"{number} ranks over {backend}",
            marks=(*marks, pytest.mark.slow) if number > PROCESSES else marks,
        )
        for number in numbers
        for backend, marks in backends.items()
    ]

    @pytest.fixture(scope="session", params=launches)
    def ranks(request, groups):
        backend, number = request.param
        if backend == "nccl" and torch.cuda.device_count() < number:
            pytest.skip(f"{number} GPUs are needed")
        return groups(backend, number)

    return ranks


ranks = processes(PROCESSES)
cpu_ranks = processes(PROCESSES, backends={"gloo": ()})
four_ranks = processes(4)
two_and_four_ranks = processes(PROCESSES, 4)


@on_all_ranks
def run_module(device, module, arguments, printed):
    """Run a module's command line as torchrun does, but for the group, which is there. A warning is an error."""
    from cs336_systems.benchmarks import command_line
    from cs336_systems.parallel import process_group

    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    restored = {"TORCHINDUCTOR_CACHE_DIR": ""}  # which a job sets
    connected = contextlib.nullcontext()
    meeting_point = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with (
        mock.patch.dict(os.environ, launched | meeting_point | restored),
        mock.patch.object(sys, "argv", [module, *arguments]),
        mock.patch.object(command_line, "process_group", return_value=connected),
        mock.patch.object(process_group, "process_group", return_value=connected),
        Path(printed if rank == "0" else os.devnull).open("w") as stdout,
        contextlib.redirect_stdout(stdout),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*all_gather_into_tensor. is deprecated")  # which tests.support.own calls
        runpy.run_module(module, run_name="__main__")


def fork_server():
    """A context whose processes are forked from one that has imported what takes seconds, and started nothing yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.forked_from"])
    return context


def launch(body, *arguments, processes=PROCESSES):
    """Run `body(rank, *arguments)` in new processes without a group, for tests that make theirs or end processes."""
    fork_server()
    torch.multiprocessing.start_processes(body, arguments, processes, start_method="forkserver")


class Ranks:
    """Processes of one group. A test that fails may leave some of them waiting for the rest: the next gets new ones."""

    def __init__(self, backend, processes, tmp_path_factory):
        self.backend = backend
        self.processes = processes
        self.folders = tmp_path_factory
        self.workers = []

    def start(self):
        # A file, not a port: concurrent runs never meet.
        meeting_point = self.folders.mktemp("ranks") / "store"
        context = fork_server()
        for rank in range(self.processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, self.processes, self.backend, str(meeting_point))
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def stop(self):
        for process, _ in self.workers:
            process.kill()
        for process, connection in self.workers:
            process.join()
            connection.close()
        self.workers = []

    def run(self, module, name, parameters):
        if not self.workers:
            self.start()
        for _, connection in self.workers:
            connection.send((module, name, parameters))
        try:
            errors = self.collect()
        except BaseException:  # pytest-timeout's, of ranks that wait for nothing
            self.stop()
            raise
        if errors:
            self.stop()
            pytest.fail("\n".join(errors), pytrace=False)

    def run_module(self, module, arguments, printed):
        """`torchrun -m MODULE ARGUMENTS`, but in these processes; what rank 0 prints goes into the file `printed`."""
        parameters = {"module": module, "arguments": arguments, "printed": printed}
        self.run(__name__, "run_module", parameters)

    def collect(self):
        """Wait for all ranks; returns the error of each that has one."""
        waiting = {connection: rank for rank, (_, connection) in enumerate(self.workers)}
        errors, deadline = [], None
        while waiting:
            left = deadline and max(0.0, deadline - time.monotonic())
            ready = multiprocessing.connection.wait(waiting, left)
            if not ready:
                return [*errors, *(f"rank {rank} is still running" for rank in waiting.values())]
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    error = connection.recv()
                except EOFError:
                    error = "the process has died"
                if error:
                    errors.append(f"rank {rank}: {error}")
                    deadline = deadline or time.monotonic() + LAST_WORDS_SECONDS
        return errors


def serve(connection, rank, processes, backend, meeting_point):
    """A rank: runs the tests sent to it, and returns the error of each, or nothing."""
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, deterministic matrix products are refused
    torch.use_deterministic_algorithms(True)  # tests compare bits
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting_point}",
        rank=rank,
        world_size=processes,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device if backend == "nccl" else None,
    )
    while True:
        try:
            module, name, parameters = connection.recv()
        except EOFError:  # pytest is gone
            return
        try:
            body = getattr(importlib.import_module(module), name).body
            # Benchmarks collect garbage before each turn: of what the test makes, not of all modules' objects.
            gc.collect()
            gc.freeze()
            torch.manual_seed(rank)
            if device.type == "cuda":
                torch.cuda.set_stream(torch.cuda.default_stream(device))  # a benchmark leaves another one
            body(device=device, **parameters)
        except BaseException:
            connection.send(traceback.format_exc())
        else:
            connection.send("")
