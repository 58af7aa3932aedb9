"""The snapshot for PyTorch's viewer."""

import pickle
import runpy
import sys

import pytest

from tests.samples import ROOT


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs the command; the path of its file."""
    output = tmp_path / "deep" / "snapshot.pickle"

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["memory_snapshot", *arguments, "--context", "16", "--output", str(output)])
        runpy.run_path(str(ROOT / "cs336_systems" / "artifacts" / "memory_snapshot.py"), run_name="__main__")

    run.output = output
    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "nanoo"], "size is 'nanoo'; allowed: nano, micro, "),
        (["--size", "nano", "micro"], "2 steps are described; allowed: one value of each parameter"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(command, capsys, arguments, message):
    with pytest.raises(SystemExit) as status:
        command(*arguments)
    assert status.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"memory_snapshot: {message}")
    assert error.count("\n") == 1
    assert not command.output.exists()


def test_without_a_gpu_one_sentence_says_why_there_is_no_snapshot(command, capsys):
    command("--size", "nano", "--device", "cpu")
    printed = capsys.readouterr().out
    assert printed == "No snapshot was written: PyTorch keeps no history of allocations on a CPU\n"
    assert not command.output.exists()


@pytest.mark.gpu
def test_the_snapshot_holds_the_step_with_its_lines(command, capsys):
    command("--size", "nano")
    assert str(command.output) in capsys.readouterr().out
    snapshot = pickle.loads(command.output.read_bytes())
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    lines = {frame["filename"] for event in trace for frame in event.get("frames", [])}
    assert any(line.endswith("cs336_systems/attention/plain.py") for line in lines)
    assert {"alloc", "free_requested", "free_completed"} <= {event["action"] for event in trace}
