"""Launches of several processes: each knows its rank, they reach each other, and one that dies ends the job."""

import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from cs336_systems.parallel.process_group import Rank, current_rank, process_group
from tests.samples import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def test_without_a_launch_there_is_one_rank_and_no_group(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    rank = current_rank()
    assert rank == Rank(number=0, processes=1, local_number=0)
    with process_group(rank, torch.device("cpu")):
        assert not dist.is_initialized()


def launch(processes, script):
    command = [*TORCHRUN, f"--nproc-per-node={processes}", str(script)]
    return subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)


SUM = """
import json, torch, torch.distributed as dist
from cs336_systems.parallel.process_group import current_rank, process_group
rank = current_rank()
with process_group(rank, torch.device("cpu")):
    total = torch.tensor(10.0 ** rank.number)
    dist.all_reduce(total)
    if rank.number == 0:
        print(json.dumps([rank.processes, total.item(), dist.get_backend()]))
assert not dist.is_initialized()
"""


def test_ranks_reach_each_other(tmp_path):
    (tmp_path / "sum.py").write_text(SUM)
    done = launch(3, tmp_path / "sum.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3, 111.0, "gloo"]


DIE = """
import torch, torch.distributed as dist
from cs336_systems.parallel.process_group import current_rank, process_group
rank = current_rank()
with process_group(rank, torch.device("cpu")):
    if rank.number == 1:
        raise RuntimeError("rank 1 has lost its way")
    dist.barrier()
"""


def test_a_rank_that_dies_ends_the_job_with_its_error(tmp_path):
    (tmp_path / "die.py").write_text(DIE)
    start = time.monotonic()
    done = launch(2, tmp_path / "die.py")
    assert time.monotonic() - start < 60
    assert done.returncode != 0
    assert "RuntimeError: rank 1 has lost its way" in done.stderr
    assert "rank      : 1" in done.stderr
