"""Stamps of the correctness gate: a new one for each version of what decides whether the tests pass."""

import importlib.metadata
from dataclasses import replace

import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.machine import Machine
from cs336_systems.run import gate
from tests.samples import ROOT

H200 = Machine(gpus=("NVIDIA H200",), gpu_memory=1, driver="580.1", cpu="a processor", cpu_count=2)


@pytest.mark.parametrize("change", [{"driver": "580.2"}, {"gpus": ("NVIDIA A10",)}, {"gpus": ("NVIDIA H200",) * 2}])
def test_other_hardware_or_another_driver_is_tested_anew(change):
    assert gate.environment_digest(replace(H200, **change)) != gate.environment_digest(H200)
    assert gate.environment_digest(replace(H200, gpu_memory=2)) == gate.environment_digest(H200)


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_another_version_is_tested_anew(monkeypatch, package):
    here = gate.environment_digest(H200)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0" if name == package else "1.0")
    changed = gate.environment_digest(H200)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    assert len({here, changed, gate.environment_digest(H200)}) == 3


def test_only_the_machine_that_was_planned_for_measures():
    gate.check_machine("nvidia-h200", H200)
    gate.check_machine("cpu", H200)
    with pytest.raises(ValueError, match="planned for nvidia-a100, but this is nvidia-h200; see the key machine"):
        gate.check_machine("nvidia-a100", H200)


def test_every_numeric_test_is_run_before_something_is_measured():
    tests = ROOT / "tests"
    numeric = [path for path in tests.rglob("test_*.py") if "pytest.mark.numeric" in path.read_text()]
    marked = {".".join(path.relative_to(tests).with_suffix("").parts) for path in numeric}
    others = {  # which write the mark
        "run.test_gate",
        "cluster.test_slurm",
        "workflow.test_gate",
        "workflow.toy.tests.test_ping",
    }
    assert all(set(experiment.tested_if) <= set(experiment.numeric_tests) for experiment in EXPERIMENTS.values())
    assert marked - others == {"test_instruments", *gate.all_tests()}


@pytest.mark.parametrize(
    ("name", "parameters", "test"),
    [
        ("data_parallel", {"compiled": True}, "parallel.test_compiled"),
        ("fsdp", {"compiled": True}, "parallel.test_compiled"),
        (
            "training_ladder",
            {"rungs": "graph,fsdp", "part": "processes", "processes": 2},
            "parallel.test_sharded_adamw",
        ),
        ("training_ladder", {"rungs": "fp8"}, "training.test_fp8"),
    ],
)
def test_a_cell_needs_the_tests_of_what_it_measures(name, parameters, test):
    experiment = EXPERIMENTS[name]
    assert experiment(**parameters).needed_tests() == experiment().needed_tests() | {test}
    assert test not in experiment().needed_tests()
