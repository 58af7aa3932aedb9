"""The kernel profile and its artifacts, on a CPU."""

import os
import runpy
import shlex
import sys

import pytest
import torch

from cs336_systems.artifacts.kernel_trace import write_trace
from cs336_systems.benchmarks import kernel_profile
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.trace import Kernel, Stage, attribute, read_events, read_file
from cs336_systems.record.measurement import STAGES
from tests.samples import ROOT
from tests.support.models import ConvolutionLM

CPU = torch.device("cpu")
TINY = "tiny:d_model=8,d_ff=12,num_layers=2,num_heads=2"


def kernels_of(*durations):
    stage = Stage(name="forward", step=0, start=0.0, end=1e6)
    return [
        Kernel(
            name=name,
            start=0.0,
            end=duration,
            duration=duration,
            lane="stream 7",
            thread="thread 1",
            launched=1.0,
            stage=stage,
            range=range_,
            operator="",
        )
        for name, range_, duration in durations
    ]


def test_small_kernels_of_a_range_share_a_row_and_their_launches_stay_counted():
    durations = [("big_elementwise_kernel", "a", 1000.0)]
    durations += [(f"{letter}_elementwise_kernel", "a", 0.1) for letter in "xyxz"]
    durations += [("lonely_elementwise_kernel", "b", 0.1), ("gemm_1", "a", 0.1), ("gemm_2", "a", 0.1)]
    rows = list(kernel_profile.kernel_rows(kernels_of(*durations)))
    assert {(row.details["range"], row.details["kernel"]): row.n for row in rows} == {
        ("a", "big_elementwise_kernel"): 1,
        ("a", "others (3 kernels)"): 4,
        ("b", "lonely_elementwise_kernel"): 1,
        ("a", "gemm_1"): 1,  # products are counted by name
        ("a", "gemm_2"): 1,
    }
    assert sum(row.mean * row.n for row in rows) == pytest.approx(1000.7)


def test_the_trace_of_a_step_is_written_and_read_again(tmp_path):
    cell = KernelProfile(size=TINY, context=7, vocab_size=32, warmup=1)
    assert write_trace(cell, CPU, tmp_path / "traces" / "step.json.gz") == ""
    trace = attribute(read_events(tmp_path / "traces" / "step.json.gz"))
    assert [(stage.name, stage.step) for stage in trace.stages] == [(name, 0) for name in STAGES]
    assert sum(kernel.name in ("aten::mm", "aten::bmm") for kernel in trace.kernels) == 3 * (2 * 9 + 1)
    first = trace.stages[0]
    assert first.start == 0 < min(kernel.start for kernel in trace.kernels) < first.end


class GreedyLM(ConvolutionLM):
    """A model that needs more memory than any address can name."""

    def forward(self, token_ids):
        return torch.empty(2**60)


def test_a_step_without_memory_leaves_a_trace_that_says_so(tmp_path):
    cell = KernelProfile(size=TINY, context=7, vocab_size=32, warmup=0, model=f"{__name__}:GreedyLM")
    message = write_trace(cell, CPU, tmp_path / "step.json.gz")
    assert "can't allocate memory" in message
    content = read_file(tmp_path / "step.json.gz")
    assert (content["traceEvents"], content["otherData"]) == ([], {"note": message})


NSYS = """#!/bin/sh
echo "$@" > "$(dirname "$0")/arguments"
while case "$1" in profile | --*) true ;; *) false ;; esac; do
    case "$1" in --output=*) output="${1#--output=}" ;; esac
    shift
done
"$@" && echo profiled > "$output"
"""
STEP = f"--size {TINY} --context 7 --vocab-size 32 --warmup 1 --device cpu"


@pytest.fixture
def nsys(tmp_path, monkeypatch, capfd):
    """Runs the artifact's command where nsys is a script."""

    def run(script, *arguments):
        (tmp_path / "nsys").write_text(script)
        (tmp_path / "nsys").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(sys, "argv", ["nsys", *shlex.split(STEP), *arguments])
        with pytest.raises(SystemExit) as status:
            runpy.run_path(str(ROOT / "cs336_systems" / "artifacts" / "nsys.py"), run_name="__main__")
        return status.value.code, capfd.readouterr()

    return run


@pytest.mark.slow
def test_nsys_profiles_the_step_where_it_is_installed(tmp_path, nsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    output = tmp_path / "made" / "step.nsys-rep"
    status, _ = nsys(NSYS, "--output", str(output))
    assert status == 0
    assert output.read_text() == "profiled\n"
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("profile --trace=cuda,nvtx,cublas --force-overwrite=true --output=")
    assert f"-m cs336_systems.artifacts.nsys {STEP} --output {output}" in arguments


def test_a_failure_under_nsys_is_passed_on(tmp_path, nsys):
    assert nsys("#!/bin/sh\nexit 3\n", "--output", str(tmp_path / "x"))[0] == 3
