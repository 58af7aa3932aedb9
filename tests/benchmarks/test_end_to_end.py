"""The experiment on the whole model, on a CPU."""

from functools import partial

import pytest
import torch
import torch._inductor.config

from cs336_systems.benchmarks import end_to_end
from cs336_systems.experiments.end_to_end import EndToEnd

CPU = torch.device("cpu")
TINY = "tiny:d_model=8,d_ff=8,num_layers=1,num_heads=2"


def tiny(**parameters):
    return EndToEnd(**({"size": TINY, "context": 8, "vocab_size": 32, "warmup": 1, "steps": 3} | parameters))


def measured(cell):
    torch.manual_seed(0)
    return {measurement.metric: measurement for measurement in end_to_end.measure(cell, CPU)}


def test_a_rehearsal_is_eager_and_short_and_a_cold_start_has_none():
    cell = tiny(compiled=True, precision="bf16")
    assert EndToEnd.rehearsal(cell) == tiny(compiled=False, precision="bf16", steps=1)
    assert EndToEnd.rehearsal(tiny(cold_start=True)) is None


@pytest.mark.gpu
def test_the_first_steps_ask_the_driver_for_memory():
    torch.cuda.empty_cache()
    rows = end_to_end.measure(tiny(size="micro", context=256, warmup=0), torch.device("cuda"))
    assert {measurement.metric: measurement.mean for measurement in rows}["device_allocations"] > 0


def test_a_cell_out_of_memory_is_a_row_between_its_neighbours(launch, capsys):
    # Scores of 8 million by 8 million tokens are 256 TB: more than an address can name, whatever the system promises.
    size = "flat:d_model=2,d_ff=1,num_layers=1,num_heads=1"
    arguments = ["--size", size, "--batch-size", "1", "--vocab-size", "4", "--steps", "2", "--warmup", "0"]
    before, lost, after = launch("end_to_end", *arguments, "--context", "4", "8000000", "8", "--mode", "forward")
    assert {"step", "wall"} <= set(before) & set(after)
    assert set(lost) == {"cell", "wall"}
    assert lost["cell"].status == "oom"
    assert "it needs 320001 GB by closed form, and this machine has " in lost["cell"].message
    assert "[2/3] context=8000000: oom: " in capsys.readouterr().err


@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_are_counted(compiled, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # a real one takes ten seconds
    torch._dynamo.reset()
    metrics = measured(tiny(compiled=compiled, model="tests.support.models:TableLM", mode="forward"))
    assert metrics["compiled_graphs"].mean == compiled


@pytest.mark.slow
def test_a_compiler_that_fails_costs_only_the_compiled_cell(launch):
    arguments = ["--size", TINY, "--context", "8", "--vocab-size", "32", "--steps", "1", "--mode", "forward"]
    arguments += ["--model", "tests.support.models:TableLM"]
    with torch._inductor.config.patch({"cpp.cxx": ("/bin/false",)}):  # what the environment's CXX sets
        compiled, eager = launch("end_to_end", *arguments, "--compiled", "True", "False")
    assert set(compiled) == {"cell", "wall"}
    assert compiled["cell"].status == "failed"
    assert "C++ compiler" in compiled["cell"].message
    assert "\n" not in compiled["cell"].message
    assert eager["step"].status == "ok"


def test_a_bug_ends_the_job_and_leaves_no_file(launch):
    arguments = ["--size", TINY, "--context", "8", "--model", "tests.support.models:BrokenLM"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        launch("end_to_end", *arguments)
    assert list(launch.output.parent.iterdir()) == []
