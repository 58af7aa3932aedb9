"""Running an experiment's command in this process."""

import runpy
import subprocess
import sys

import pytest
import torch

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters, read_jobs
from tests.support.interpreter import ROOT


@pytest.fixture
def command(monkeypatch):
    """`python -m cs336_systems.benchmarks NAME ARGUMENTS`, run in this process, which has imported PyTorch already."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # a job sets it: have it restored

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", ["benchmarks", name, *arguments])
        runpy.run_module("cs336_systems.benchmarks", run_name="__main__")

    return run


@pytest.fixture
def launch(command, tmp_path):
    """Runs an experiment's command on the CPU and gives back its rows by cell and metric."""
    output = tmp_path / "rows.csv"

    def run(name, *arguments):
        command(name, *arguments, "--device", "cpu", "--output", str(output))
        cells = {}
        for row in read_jobs(EXPERIMENTS[name], [output]):
            cell = tuple(getattr(row, parameter) for parameter in parameters(EXPERIMENTS[name]))
            cells.setdefault(cell, {})[row.metric] = row
        return list(cells.values())

    run.output = output
    return run


@pytest.fixture(scope="session")
def launch_ranks(groups, tmp_path_factory):
    """Runs an experiment's command on two ranks and gives back its rows."""

    def run(name, device, *arguments):
        if device == "cuda" and torch.cuda.device_count() < 2:
            pytest.skip("needs 2 GPUs")
        folder = tmp_path_factory.mktemp("launch")
        module, output = "cs336_systems.benchmarks", folder / "rows.csv"
        options = [name, *arguments, "--device", device, "--output", str(output)]
        if device == "cpu":
            groups("gloo", 2).run_module(module, options, folder / "printed")
        else:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            done = subprocess.run(
                [*torchrun, "-m", module, *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stderr
            assert "Warning" not in done.stderr
        return read_jobs(EXPERIMENTS[name], [output])

    return run
