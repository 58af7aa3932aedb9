"""The snapshot for PyTorch's viewer."""

import pickle
import sys

import pytest
import torch

from cs336_systems.artifacts import memory_snapshot

ARGUMENTS = ["--size", "nano", "--context", "16"]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs the command; the path of its file."""
    output = tmp_path / "deep" / "snapshot.pickle"

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["memory_snapshot", *arguments, "--output", str(output)])
        memory_snapshot.main()

    run.output = output
    return run


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_says_so(command, capsys):
    with pytest.raises(SystemExit) as status:
        command(*ARGUMENTS)
    assert status.value.code == 2
    told = capsys.readouterr().err
    assert told == "memory_snapshot: PyTorch keeps a history of allocations on CUDA devices only\n"
    assert not command.output.exists()


def test_a_wrong_value_is_told_in_one_sentence(command, capsys):
    with pytest.raises(SystemExit) as status:
        command("--size", "nanoo")
    assert status.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("memory_snapshot: size is 'nanoo'; allowed: nano, micro")
    assert told.count("\n") == 1


@pytest.mark.gpu
def test_the_snapshot_holds_the_step_with_its_lines(command, capsys):
    command(*ARGUMENTS)
    assert str(command.output) in capsys.readouterr().out
    snapshot = pickle.loads(command.output.read_bytes())
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    lines = {frame["filename"] for event in trace for frame in event.get("frames", [])}
    assert any(line.endswith("cs336_systems/attention/plain.py") for line in lines)
    assert {"alloc", "free_requested", "free_completed"} <= {event["action"] for event in trace}
