"""Tests that run on every rank of a launch: two or four processes, started once, serve all tests of a session."""

import functools
import importlib
import inspect
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

PROCESSES = 2
COLLECTIVE_TIMEOUT = timedelta(seconds=60)
TEST_TIMEOUT_SECONDS = 120
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


on_four_ranks = functools.partial(on_all_ranks, ranks="four_ranks")
on_two_and_on_four_ranks = functools.partial(on_all_ranks, ranks="two_and_four_ranks")


def processes(*numbers):
    """A fixture with so many processes, in turn, which are started when the first test needs them."""
    backends = {"gloo": (), "nccl": pytest.mark.gpu}
    launches = [
        pytest.param((backend, number), id=f"{number} ranks over {backend}", marks=marks)
        for number in numbers
        for backend, marks in backends.items()
    ]

    @pytest.fixture(scope="session", params=launches)
    def ranks(request, tmp_path_factory):
        backend, number = request.param
        if backend == "nccl" and torch.cuda.device_count() < number:
            pytest.skip(f"{number} GPUs are needed")
        ranks = Ranks(backend, number, tmp_path_factory)
        yield ranks
        ranks.stop()

    return ranks


ranks = processes(PROCESSES)
four_ranks = processes(4)
two_and_four_ranks = processes(PROCESSES, 4)


class Ranks:
    """Processes of one group. A test that fails may leave some of them waiting for the rest: the next gets new ones."""

    def __init__(self, backend, processes, tmp_path_factory):
        self.backend = backend
        self.processes = processes
        self.folders = tmp_path_factory
        self.workers = []

    def start(self):
        # A file, not a port: runs beside each other never meet.
        meeting_point = self.folders.mktemp("ranks") / "store"
        # Ranks are forked from a process that has imported these, which take seconds, and started nothing yet.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim"])
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
        errors = self.collect()
        if errors:
            self.stop()
            pytest.fail("\n".join(errors), pytrace=False)

    def collect(self):
        """What went wrong, for each rank where something did."""
        waiting = {connection: rank for rank, (_, connection) in enumerate(self.workers)}
        errors = []
        deadline = time.monotonic() + TEST_TIMEOUT_SECONDS
        while waiting:
            ready = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
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
                    deadline = min(deadline, time.monotonic() + LAST_WORDS_SECONDS)
        return errors


def serve(connection, rank, processes, backend, meeting_point):
    """A rank: runs the tests that it is sent, and answers each with its error, or with nothing."""
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
        torch.manual_seed(rank)
        try:
            getattr(importlib.import_module(module), name).body(device=device, **parameters)
        except BaseException:
            connection.send(traceback.format_exc())
        else:
            connection.send("")
