"""All-reduces between real processes: what is summed, what is timed, and what does not fit."""

import socket
import subprocess
import sys

import pytest
import torch

from cs336_systems.benchmarks import all_reduce
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.record.measurement import parse_samples
from cs336_systems.record.rows import read_jobs
from tests.samples import ROOT
from tests.support.faults import broken_laws, tables_of

TOO_LARGE = 10**9
"""Megabytes that no machine has."""


def launch(folder, *options):
    """The rows of a launch of two processes, each with its agent of torchrun, as on two nodes."""
    with socket.create_server(("localhost", 0)) as server:
        meeting_point = f"localhost:{server.getsockname()[1]}"
    command = [
        *[sys.executable, "-m", "torch.distributed.run"],
        *["--nnodes=2", "--nproc-per-node=1"],
        *["--rdzv-backend=c10d", f"--rdzv-endpoint={meeting_point}"],
        *["-m", "cs336_systems.benchmarks", "all_reduce", *options],
        *["--output", str(folder / "rows.csv")],
    ]
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for agent in started:
            _, stderr = agent.communicate(timeout=120)
            assert agent.returncode == 0, stderr
    finally:
        for agent in started:
            agent.kill()
    return read_jobs(AllReduce, [folder / "rows.csv"])


NODES = "gloo on two nodes"
LAUNCHES = ["gloo", pytest.param(NODES, marks=pytest.mark.slow), pytest.param("nccl", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=LAUNCHES)
def rows(request, launch_ranks, tmp_path_factory):
    """Three sizes, one of them far too large, by size and metric."""
    backend = request.param.partition(" ")[0]
    options = ["--backend", backend, "--megabytes", "1", str(TOO_LARGE), "9", "--warmup", "1", "--steps", "4"]
    if request.param == NODES:
        measured = launch(tmp_path_factory.mktemp("launch"), *options)
    else:
        measured = launch_ranks("all_reduce", "cuda" if backend == "nccl" else "cpu", *options)
    return {(row.megabytes, row.metric): row for row in measured}


def test_sums_are_right_and_bandwidths_follow_from_times(rows):
    tables = tables_of("all_reduce", [row for row in rows.values() if row.status == "ok"])
    assert broken_laws("all_reduce", tables) == []
    for megabytes in (1, 9):
        assert rows[megabytes, "wrong_numbers"].n == 2  # before and after the timing
        time, spread = (parse_samples(rows[megabytes, name].samples) for name in ("time", "rank_spread"))
        assert len(time) == 4
        assert all(0 <= apart <= slowest for slowest, apart in zip(time, spread, strict=True))


def test_what_does_not_fit_is_skipped_by_all_ranks_alike(rows):
    cell = rows[TOO_LARGE, "cell"]
    assert cell.status == "skipped"
    assert "GB of memory, and" in cell.message
    assert (9, "time") in rows  # measured after it


def test_over_gloo_no_gpu_takes_part(request, rows):
    row = next(iter(rows.values()))
    nodes = 2 if request.node.callspec.params["rows"] == NODES else 1
    assert {(row.gpu_count, row.nodes) for row in rows.values()} == {(0 if row.backend == "gloo" else 2, nodes)}


def test_contributions_differ_and_their_sums_are_exact():
    torch.manual_seed(3)
    blocks = torch.stack([all_reduce.contribution(rank) for rank in range(6)])
    assert len({tuple(block[:9].tolist()) for block in blocks}) == 6
    assert torch.equal(blocks.sum(0).double(), blocks.double().sum(0))
    assert torch.equal(all_reduce.contribution(2), blocks[2])
    torch.manual_seed(4)
    assert not torch.equal(all_reduce.contribution(2), blocks[2])


def test_a_wrong_number_anywhere_is_counted(monkeypatch):
    monkeypatch.setattr(all_reduce, "gather", lambda numbers, device: [[0.0], list(numbers)])
    block = all_reduce.contribution(0)
    numbers = torch.empty(2 * all_reduce.BLOCK + 5)
    all_reduce.fill(numbers, block)
    assert all_reduce.most_wrong(numbers, block) == 0
    numbers[-1] += 1
    numbers[all_reduce.BLOCK] = float("nan")
    assert all_reduce.most_wrong(numbers, block) == 2
    shifted = numbers.roll(1)
    assert all_reduce.most_wrong(shifted, block) > all_reduce.BLOCK
