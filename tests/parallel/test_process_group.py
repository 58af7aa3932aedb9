"""Launches of several processes: each knows its rank, they reach each other, and one that dies ends them all."""

import contextlib
import os
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import run

from cs336_systems.parallel.process_group import Rank, current_rank, process_group
from tests.samples import ROOT
from tests.support.ranks import fork_server, launch


def test_without_a_launch_there_is_one_rank_and_no_group(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    rank = current_rank()
    assert rank == Rank(number=0, processes=1, local_number=0, local_processes=1)
    with process_group(rank, torch.device("cpu")):
        assert not dist.is_initialized()


LAUNCHED = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
NONSENSE = {
    "WORLD_SIZE": (["", "two", "0", "-2"], "; allowed: integers of at least 1$"),
    "RANK": (["", "2", "-1", "1.0"], "; allowed: integers from 0 to 1$"),
    "LOCAL_WORLD_SIZE": (["3", "0"], "; allowed: integers from 1 to 2$"),
    "LOCAL_RANK": (["2", "x"], "; allowed: integers from 0 to 1$"),
    "MASTER_PORT": (["", "0", "99999", "http"], "; allowed: integers from 1 to 65535$"),
    "MASTER_ADDR": (["", "no such host", "a..b"], r" \(.*\); allowed: "),
    "CS336_COLLECTIVE_TIMEOUT_S": (["", "0", "forever", "1e3"], "; allowed: integers from 1 to 86400$"),
}


def test_a_rank_is_read_from_the_environment(monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert current_rank() == Rank(number=1, processes=2, local_number=1, local_processes=2)


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_the_environment_is_refused_in_a_sentence(name, monkeypatch):
    values, rest = NONSENSE[name]
    for value in values:
        for each, usual in (LAUNCHED | {name: value}).items():
            monkeypatch.setenv(each, usual)
        with pytest.raises(ValueError, match=f"^the environment variable {name} is '{value}'{rest}"):
            current_rank()


def test_a_port_that_is_taken_is_refused_by_the_rank_that_would_listen_there(monkeypatch):
    with socket.create_server(("", 0)) as other:
        port = str(other.getsockname()[1])
        for name, usual in (LAUNCHED | {"MASTER_PORT": port}).items():
            monkeypatch.setenv(name, usual)
        current_rank()  # rank 1 only connects
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        with pytest.raises(ValueError, match=f"MASTER_PORT is '{port}' .Address already in use.; allowed"):
            current_rank()
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # torchrun listens there
        current_rank()


def sum_as_launched(rank, port, printed):
    """Find the others as torchrun's ranks do, over the store of who has launched them."""
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    store = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ.update({name: str(value) for name, value in (launched | store).items()})
    rank = current_rank()
    with process_group(rank, torch.device("cpu")):
        total = torch.tensor(10.0**rank.number)
        dist.all_reduce(total)
        (printed / str(rank.number)).write_text(f"{rank.processes} {total.item()} {dist.get_backend()}")
    assert not dist.is_initialized()


def test_ranks_reach_each_other(tmp_path):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    launch(sum_as_launched, store.port, tmp_path)
    assert [(tmp_path / name).read_text() for name in "01"] == ["2 11.0 gloo"] * 2


FAULTY = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from cs336_systems.benchmarks import all_reduce
from cs336_systems.benchmarks.command_line import main
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.parallel import process_group

fault, rank, processes = sys.argv.pop(1), int(os.environ["RANK"]), Path(sys.argv.pop(1))

def write_pid():
    written = processes / f".{rank}"
    written.write_text(str(os.getpid()))
    written.rename(processes / str(rank))

def measure(cell, device):
    write_pid()
    rows = all_reduce.measure(cell, device)
    if rank == 1 and fault == "raises amid a collective":
        dist.all_reduce(torch.ones(100, device=device), async_op=True)
        raise RuntimeError("lost its way")
    if rank == 0 and fault == "raises amid a collective":
        time.sleep(300)  # does not take part in it
    if rank == 1 and fault == "is silent":
        time.sleep(300)
    if rank == 1 and fault == "is killed":
        os.kill(os.getpid(), 9)
    if fault == "loses its launcher":
        time.sleep(300)
    return rows

if fault == "is silent":
    os.environ["CS336_COLLECTIVE_TIMEOUT_S"] = "5"
if fault == "never joins":
    process_group.JOIN_TIMEOUT = timedelta(seconds=2)
    write_pid()
    if rank == 1:
        time.sleep(300)
main(AllReduce, measure)
"""
ERRORS = {
    "raises amid a collective": [
        *["RuntimeError: lost its way", "This happened on rank 1 of 2.", "rank      : 1 (local_rank: 1)"]
    ],
    "is killed": ["rank      : 1 (local_rank: 1)", "Signal 9 (SIGKILL) received by PID"],
    "is silent": ["rank      : 0 (local_rank: 0)"],
    "never joins": ["TimeoutError: not started within 2 s: rank 1 of 2"],
}
"""The end of a launch's output, by what rank 1 does."""
LIMIT_S = 150
"""Enough for a launch on a busy machine, and a fraction of the time that ranks wait in a collective."""


def torchrun(folder, *arguments):
    """Act like the command, without importing PyTorch once more; the ranks are started as always."""
    with (folder / "stderr").open("w") as written:
        os.dup2(written.fileno(), sys.stderr.fileno())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    run.main(["--standalone", "--nproc-per-node=2", str(folder / "faulty.py"), *arguments])


@dataclass
class Launch:
    """A launch whose rank 1 is at fault."""

    torchrun: BaseProcess
    folder: Path
    begun: float

    @property
    def csv(self):
        return self.folder / "rows.csv"

    def ranks(self):
        """The process of each rank, once all are there."""
        while len(pids := list((self.folder / "ranks").glob("[01]"))) < 2:
            if self.torchrun.exitcode is not None or time.monotonic() - self.begun > LIMIT_S:
                break
            time.sleep(0.1)
        return [int(path.read_text()) for path in pids]

    def end(self):
        """Exit status, None if it does not end within LIMIT_S, and what torchrun says of the failure."""
        self.torchrun.join(LIMIT_S)
        return self.torchrun.exitcode, (self.folder / "stderr").read_text().rpartition("Root Cause")[2]


def alive(pids):
    """Those that still run a few seconds later."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return psutil.wait_procs(processes, timeout=5)[1]


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def launches(request, tmp_path_factory):
    """A launch with each fault, all at the same time: they must not disturb each other."""
    if request.param == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    started = {}
    for fault in [*ERRORS, "loses its launcher"]:
        folder = tmp_path_factory.mktemp("launch")
        (folder / "ranks").mkdir()
        (folder / "faulty.py").write_text(FAULTY)
        arguments = [fault, str(folder / "ranks"), "--backend", request.param, "--output", str(folder / "rows.csv")]
        launched = fork_server().Process(target=torchrun, args=(folder, *arguments))
        launched.start()
        started[fault] = Launch(launched, folder, time.monotonic())
    yield started
    for each in started.values():
        each.torchrun.kill()
        each.torchrun.join()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ERRORS)
def test_a_rank_at_fault_ends_the_launch_and_is_named(launches, fault):
    faulty = launches[fault]
    ranks = faulty.ranks()
    assert ranks, faulty.end()
    status, message = faulty.end()
    assert status == 1
    for text in ERRORS[fault]:
        assert text in message
    assert not faulty.csv.exists()
    assert alive(ranks) == []


@pytest.mark.slow
def test_no_rank_outlives_its_launcher(launches):
    faulty = launches["loses its launcher"]
    ranks = faulty.ranks()
    assert len(ranks) == 2
    faulty.torchrun.kill()
    assert alive(ranks) == []
    assert not faulty.csv.exists()
