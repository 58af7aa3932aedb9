"""The command line that all experiments share."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from cs336_systems.benchmarks.command_line import (
    check_processes,
    device_of_rank,
    measure_all,
    parse_command_line,
    resolve_device,
)
from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.base import field_docs
from cs336_systems.experiments.registry import KINDS
from cs336_systems.grids import launch_command
from cs336_systems.parallel.process_group import Rank
from cs336_systems.record.measurement import WALL, WHOLE_CELL, Measurement, summarize
from cs336_systems.record.rows import parameters
from cs336_systems.run.kept_cells import KEPT, add_cell, measured_cells, out_of_memory, start_keeping
from tests.samples import ROOT, mistakes


@pytest.mark.parametrize(("experiment", "arguments", "message"), mistakes("commands"))
def test_a_bad_value_ends_in_a_sentence_and_status_two(command, capsys, experiment, arguments, message):
    with pytest.raises(SystemExit) as status:
        command(experiment, *arguments.split())
    assert status.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("experiment", "inputs"),
    [
        *((name, "--size small --context 99999999") for name in ("memory_profile", "training_ladder", "block_memory")),
        *((name, "--sequence 2000000000") for name in ("attention", "flash")),
    ],
)
def test_more_memory_than_a_cpu_has_is_a_result_at_once(command, capsys, experiment, inputs):
    """Linux would grant it, and end the process later."""
    command(experiment, "--device", "cpu", *inputs.split())
    *_, row, _ = capsys.readouterr().out.strip().splitlines()
    assert re.search(r" oom .*(needs \d+ GB by closed form, and this machine has \d+|can't allocate memory)", row)


@pytest.mark.parametrize("name", KINDS)
def test_help_explains_every_option(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "3000")
    with pytest.raises(SystemExit) as status:
        parse_command_line(KINDS[name], ["--help"])
    assert status.value.code == 0
    text = capsys.readouterr().out
    assert f"cs336-systems measure {name}" in text
    assert KINDS[name].__doc__.endswith(".")
    docs = field_docs(KINDS[name])
    for option in parameters(KINDS[name]):
        assert f"--{option.replace('_', '-')}" in text
        assert docs.get(option), f"{option} of {name} has no docstring"
        assert docs[option].split(";")[0].split("\n")[0] in text
    for contender in getattr(KINDS[name], "contenders", ()):
        about = getattr(contender, "about", "")
        assert not about or f"{contender.name}: {about}" in text


def test_without_output_a_table_is_printed(command, capsys):
    command("accumulation", "--addend", "fp32", "fp16", "--device", "cpu")
    constant, header, *lines = capsys.readouterr().out.splitlines()
    assert constant == "accumulator fp32, cast False, additions 1000"
    assert header.split() == ["addend", "metric", "unit", "n", "mean", "median", "status"]
    sums = {line.split()[0]: line.split() for line in lines if " sum " in line}
    assert set(sums) == {"fp32", "fp16"}
    assert "10" in sums["fp32"]


def test_every_experiment_has_a_module_that_measures_it():
    for name, kind in KINDS.items():
        module = importlib.import_module(f"cs336_systems.benchmarks.{name}")
        assert callable(module.measure)
        assert module.__doc__.count(f"Launch: {launch_command(name, kind().processes)}") == 1
        assert kind.name == name
    assert {path.stem for path in Path(ROOT, "cs336_systems", "benchmarks").glob("[!_]*.py")} == {
        *KINDS,
        "command_line",
        "ranks",
        "runner",
    }


@pytest.mark.parametrize(
    ("processes", "launched", "launcher"), [(4, 1, "torchrun --standalone --nproc-per-node=4"), (1, 2, "python")]
)
def test_another_number_of_processes_is_answered_with_the_right_launch(monkeypatch, processes, launched, launcher):
    monkeypatch.setattr(Accumulation, "processes", processes)
    check_processes(Accumulation(), ranks(processes)[0])
    with pytest.raises(
        ValueError, match=f"processes is {processes}, but {launched} were launched; launch with {launcher} "
    ):
        check_processes(Accumulation(), ranks(launched)[0])


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def ranks(processes, nodes=1):
    here = processes // nodes
    return [
        Rank(number=number, processes=processes, local_number=number % here, local_processes=here)
        for number in range(processes)
    ]


def test_each_process_has_a_gpu_of_its_own(two_gpus):
    gpu, cpu, cells = resolve_device("auto"), resolve_device("cpu"), [Accumulation()]
    assert [device_of_rank(cells, gpu, rank) for rank in ranks(2)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert device_of_rank(cells, gpu, ranks(1)[0]) == torch.device("cuda")
    for rank in ranks(3):  # all of them: only rank 0 prints
        with pytest.raises(ValueError, match="3 processes need a GPU each, but 2 are visible"):
            device_of_rank(cells, gpu, rank)
        assert device_of_rank(cells, cpu, rank) == cpu
    assert [device_of_rank(cells, gpu, rank).index for rank in ranks(4, nodes=2)] == [0, 1, 0, 1]


def test_a_backend_decides_what_its_cells_are_measured_on(two_gpus):
    gpu, cpu = resolve_device("auto"), resolve_device("cpu")
    gloo, nccl = AllReduce(backend="gloo"), AllReduce(backend="nccl")
    assert all(device_of_rank([gloo], machine, rank) == cpu for machine in (gpu, cpu) for rank in ranks(3))
    assert device_of_rank([nccl], gpu, ranks(2)[1]) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="2 processes need a GPU each, but 0 are visible"):
        device_of_rank([nccl], cpu, ranks(2)[0])
    with pytest.raises(ValueError, match="the backends need cpu and cuda; allowed: one backend per launch"):
        device_of_rank([gloo, nccl], gpu, ranks(2)[0])


def test_a_job_takes_over_what_an_earlier_launch_kept(launch, tmp_path, monkeypatch, capfd):
    kept = tmp_path / "cells.jsonl"
    add_cell(kept, [summarize("sum", "", [10.0]), summarize(WALL, "s", [1.0])])
    add_cell(kept, [Measurement(metric=WHOLE_CELL, status="oom", message="no memory"), summarize(WALL, "s", [2.0])])
    monkeypatch.setenv(KEPT, str(kept))
    first, lost, measured = launch("accumulation", "--additions", "10", "20", "30")
    assert (first["sum"].additions, first["sum"].mean) == (10, 10.0)
    assert (lost[WHOLE_CELL].additions, lost[WHOLE_CELL].message) == (20, "no memory")
    assert measured["sum"].mean == pytest.approx(0.3, rel=1e-3)
    assert len(measured_cells(kept)) == 3
    lines = capfd.readouterr().err.splitlines()
    assert lines[:2] == ["[1/3] additions=10: ok, 1.0 s", "[2/3] additions=20: oom: no memory, 2.0 s"]
    assert lines[2].startswith("[3/3] additions=30: ok, ")


def test_memory_that_runs_out_while_others_wait_is_told(tmp_path, monkeypatch):
    """The launch ends, and its launcher goes on with the next cell."""

    def measure(cell, device):
        raise RuntimeError("rank 0 ran out of memory, but other ranks did not") from MemoryError("8 GB")

    kept = tmp_path / "kept.jsonl"
    start_keeping(kept, "a launch")
    monkeypatch.setenv(KEPT, str(kept))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # a job sets it: have it restored
    alone = Rank(number=0, processes=1, local_number=0, local_processes=1)
    with pytest.raises(RuntimeError, match="other ranks did not"):
        measure_all([Accumulation()], measure, torch.device("cpu"), alone, seed=0)
    assert out_of_memory(kept) == "rank 0 ran out of memory, but other ranks did not: 8 GB"
