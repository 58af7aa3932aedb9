"""The experiments on a CPU, as run by hand: what they measure, and what becomes of what they cannot measure."""

import dataclasses
import importlib
import runpy
import shutil
import sys
import time
import typing
from pathlib import Path

import numpy
import pytest
import torch
import torch._inductor.config
from torch._dynamo.exc import BackendCompilerFailed

from cs336_systems.attention.tile_config import backward_tiles, forward_tiles
from cs336_systems.benchmarks import accumulation, attention, autocast_dtypes, end_to_end, flash, flash_ablation
from cs336_systems.benchmarks.job import describe, first_line, measure_all, measure_or_explain, parse_command_line
from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from cs336_systems.experiments.base import field_docs
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.memory import Unavailable, is_out_of_memory
from cs336_systems.measure.record import Measurement, read_rows, summarize
from tests.models import ConvolutionLM
from tests.samples import ROOT

CPU = torch.device("cpu")
TINY = "tiny:d_model=8,d_ff=8,num_layers=1,num_heads=2"
PHASES = {"forward": 1, "forward_backward": 2, "train_step": 3}
COMPILER = next(filter(shutil.which, ["g++", "c++", "clang++"]), None)


def tiny(**parameters):
    return EndToEnd(**({"size": TINY, "context": 8, "vocab_size": 32, "warmup": 1, "steps": 3} | parameters))


def measured(cell):
    torch.manual_seed(0)
    return {measurement.metric: measurement for measurement in end_to_end.measure(cell, CPU)}


@pytest.fixture
def command(monkeypatch):
    """`python -m cs336_systems.benchmarks.NAME ARGUMENTS`, run in this process, which has imported PyTorch already."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # a job sets it: have it restored

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "cs336_systems" / "benchmarks" / f"{name}.py"), run_name="__main__")

    return run


@pytest.fixture
def launch(command, tmp_path):
    """Runs an experiment's command on the CPU and gives back its rows by cell and metric."""
    output = tmp_path / "rows.csv"

    def run(name, *arguments):
        command(name, *arguments, "--device", "cpu", "--output", str(output))
        cells = {}
        for row in read_rows(EXPERIMENTS[name], [output]):
            parameters = tuple(getattr(row, field.name) for field in dataclasses.fields(EXPERIMENTS[name]))
            cells.setdefault(parameters, {})[row.metric] = row
        return list(cells.values())

    run.output = output
    return run


@pytest.mark.parametrize("mode", PHASES)
def test_a_step_is_the_sum_of_its_phases(mode):
    metrics = measured(tiny(mode=mode))
    phases = list(metrics)[: PHASES[mode]]
    assert phases == ["forward", "backward", "optimizer"][: PHASES[mode]]
    assert metrics["step"].mean == pytest.approx(sum(metrics[phase].mean for phase in phases), rel=1e-9)
    assert {metrics[name].n for name in (*phases, "step")} == {3}
    assert all(metrics[name].mean > 0 for name in (*phases, "step", "first_step", "build", "warmup"))
    assert metrics["first_step"].n == 1
    assert metrics["compiled_graphs"].mean == 0
    assert metrics["peak_memory"].status == "skipped"
    assert "CUDA" in metrics["peak_memory"].message


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_logits_have_the_cells_precision(precision, dtype):
    assert measured(tiny(precision=precision, mode="forward"))["logits_dtype"].value == dtype


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_slow_first_step_counts_only_without_warm_up(monkeypatch, warmup):
    forward = end_to_end.TrainingStep.forward
    calls = []

    def slow_at_first(step):
        calls.append(step)
        if len(calls) == 1:
            time.sleep(0.2)
        forward(step)

    monkeypatch.setattr(end_to_end.TrainingStep, "forward", slow_at_first)
    metrics = measured(tiny(warmup=warmup, mode="forward"))
    assert len(calls) == warmup + 3
    timed = warmup == 0
    assert (metrics["first_step"].mean > 200) == timed
    assert (metrics["step"].mean > 200 / 3) == timed
    assert (metrics["warmup"].mean > 0.2) != timed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_phases_train_the_model_as_a_loop_written_out_does(precision):
    cell = tiny(precision=precision)
    tokens = torch.randint(cell.vocab_size, (cell.batch_size, cell.context + 1))
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(end_to_end.build_model(cell, CPU))
    measured_model, model = models
    before = [parameter.detach().clone() for parameter in model.parameters()]

    step = end_to_end.TrainingStep(cell, measured_model, tokens)
    for _ in range(2):
        for phase in step.phases().values():
            phase()

    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 32), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()

    for old, mine, theirs in zip(before, measured_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(mine, theirs)
        assert not torch.equal(mine, old)


def test_backward_leaves_one_steps_gradients_and_the_weights_alone():
    cell = tiny(mode="forward_backward")
    model = end_to_end.build_model(cell, CPU)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = end_to_end.TrainingStep(cell, model, torch.randint(32, (4, 9)))
    gradients = []
    for _ in range(2):
        for phase in step.phases().values():
            phase()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert step.optimizer is None
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])
    for first, second, old, new in zip(*gradients, before, model.parameters(), strict=True):
        assert torch.equal(first, second)  # not added up
        assert torch.equal(old, new)


def test_both_attention_functions_are_the_same_model():
    losses = []
    for name in ("plain", "sdpa"):
        torch.manual_seed(0)
        cell = tiny(attention=name)
        model = end_to_end.build_model(cell, CPU)
        step = end_to_end.TrainingStep(cell, model, torch.arange(36).reshape(4, 9) % 32)
        step.forward()
        losses.append(step.loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_another_model_class_is_measured_by_name(launch):
    arguments = ["--size", TINY, "--context", "8", "--vocab-size", "32", "--steps", "2", "--mode", "train_step"]
    (metrics,) = launch("end_to_end", *arguments, "--model", "tests.models:ConvolutionLM")
    assert metrics["step"].mean > 0
    assert metrics["step"].model == "tests.models:ConvolutionLM"
    assert isinstance(end_to_end.build_model(tiny(model="tests.models:ConvolutionLM"), CPU), ConvolutionLM)


def test_a_cell_out_of_memory_is_a_row_between_its_neighbours(launch, capsys):
    # Scores of 8 million by 8 million tokens are 233 TiB: more than an address can name, whatever the system promises.
    size = "flat:d_model=2,d_ff=1,num_layers=1,num_heads=1"
    arguments = ["--size", size, "--batch-size", "1", "--vocab-size", "4", "--steps", "2", "--warmup", "0"]
    before, lost, after = launch("end_to_end", *arguments, "--context", "4", "8000000", "8", "--mode", "forward")
    assert {"step", "wall"} <= set(before) & set(after)
    assert set(lost) == {"cell", "wall"}
    assert lost["cell"].status == "oom"
    assert "can't allocate memory: you tried to allocate 256000000000000 bytes" in lost["cell"].message
    assert "[2/3] context=8000000: oom: " in capsys.readouterr().err


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler, which torch.compile needs on a CPU")
def test_compiled_cells_run_captured_graphs(launch):
    arguments = ["--size", TINY, "--context", "8", "--vocab-size", "32", "--steps", "2", "--mode", "forward"]
    arguments += ["--model", "tests.models:TableLM"]
    # Finding out the processor's vector instructions and precompiling headers would take ten seconds.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}):
        eager, compiled = launch("end_to_end", *arguments, "--compiled", "False", "True")
    assert eager["compiled_graphs"].mean == 0
    assert compiled["compiled_graphs"].mean > 0
    assert compiled["warmup"].mean > 10 * eager["warmup"].mean  # where the compiler works


def test_a_compiler_that_fails_costs_only_the_compiled_cell(launch):
    arguments = ["--size", TINY, "--context", "8", "--vocab-size", "32", "--steps", "1", "--mode", "forward"]
    arguments += ["--model", "tests.models:TableLM"]
    with torch._inductor.config.patch({"cpp.cxx": ("/bin/false",)}):  # what the environment's CXX sets
        compiled, eager = launch("end_to_end", *arguments, "--compiled", "True", "False")
    assert set(compiled) == {"cell", "wall"}
    assert compiled["cell"].status == "failed"
    assert "C++ compiler" in compiled["cell"].message
    assert "\n" not in compiled["cell"].message
    assert eager["step"].status == "ok"


def test_a_bug_ends_the_job_and_leaves_no_file(launch):
    arguments = ["--size", TINY, "--context", "8", "--model", "tests.models:BrokenLM"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        launch("end_to_end", *arguments)
    assert list(launch.output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("experiment", "arguments", "complaint"),
    [
        ("end_to_end", ["--context", "0"], "end_to_end: context is 0; allowed: greater than or equal to 1"),
        ("end_to_end", ["--size", "nano", "huge"], "end_to_end: size is 'huge'; allowed: nano, micro"),
        ("end_to_end", ["--model", "nowhere"], "end_to_end: model is 'nowhere'; allowed: "),
        ("end_to_end", ["--model", "no.such:Model"], "end_to_end: model 'no.such:Model' cannot be loaded: No module"),
        ("end_to_end", ["--precision", "fp8"], "invalid choice 'fp8'"),
        ("end_to_end", ["--steps", "many"], "many"),
        ("accumulation", ["--colour", "blue"], "--colour"),
    ],
)
def test_a_bad_value_ends_in_a_sentence_and_status_two(command, capsys, experiment, arguments, complaint):
    with pytest.raises(SystemExit) as status:
        command(experiment, *arguments)
    assert status.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(command, capsys):
    with pytest.raises(SystemExit) as status:
        command("accumulation", "--device", "cuda")
    assert status.value.code == 2
    assert capsys.readouterr().err == (
        f"accumulation: device is cuda, but PyTorch {torch.__version__} sees no GPU; allowed here: cpu\n"
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_explains_every_option(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as status:
        parse_command_line(EXPERIMENTS[name], ["--help"])
    assert status.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m cs336_systems.benchmarks.{name}" in text
    for option, doc in field_docs(EXPERIMENTS[name]).items():
        if option != "name":
            assert f"--{option.replace('_', '-')}" in text
            assert doc.split(";")[0].split("\n")[0] in text


def test_without_output_a_table_is_printed(command, capsys):
    command("accumulation", "--addend", "fp32", "fp16", "--device", "cpu")
    constant, header, *lines = capsys.readouterr().out.splitlines()
    assert constant == "accumulator fp32, cast False, additions 1000"
    assert header.split() == ["addend", "metric", "unit", "n", "mean", "median", "status"]
    sums = {line.split()[0]: line.split() for line in lines if " sum " in line}
    assert set(sums) == {"fp32", "fp16"}
    assert "10" in sums["fp32"]


def test_every_cell_starts_from_the_same_seed_with_the_memory_of_none():
    def draw(cell, device):
        return [summarize("draw", "", [torch.rand(1).item()])]

    cells = [Accumulation(additions=number) for number in (1, 2, 3)]
    drawn = [measurements[0].mean for _, measurements in measure_all(cells, draw, CPU, seed=5)]
    other = [measurements[0].mean for _, measurements in measure_all(cells[:1], draw, CPU, seed=6)]
    assert len(set(drawn)) == 1
    assert other[0] != drawn[0]


def test_what_a_machine_lacks_is_skipped_with_its_reason():
    def measure(cell, device):
        if cell.additions == 2:
            raise Unavailable("no abacus here")
        return [Measurement(metric="beads", n=1, value="many")]

    cells = [Accumulation(additions=number) for number in (1, 2, 3)]
    found = [measurements for _, measurements in measure_all(cells, measure, CPU, seed=0)]
    assert [[one.metric for one in measurements] for measurements in found] == [
        ["beads", "wall"],
        ["cell", "wall"],
        ["beads", "wall"],
    ]
    assert (found[1][0].status, found[1][0].message) == ("skipped", "no abacus here")


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_out_of_memory_is_told_from_bugs(error, out_of_memory):
    assert is_out_of_memory(error) is out_of_memory


@pytest.mark.parametrize(("cause", "status"), [(MemoryError(), "oom"), (None, "failed"), (KeyError(), "failed")])
def test_what_ends_a_compilation_is_told(cause, status):
    def measure(cell, device):
        raise BackendCompilerFailed(measure, RuntimeError("inside"), None) from cause

    (row,) = measure_or_explain(measure, Accumulation(), CPU)
    assert (row.metric, row.status) == ("cell", status)


def test_messages_are_one_short_line():
    assert first_line(RuntimeError("No memory. Tried 2 GiB. GPU 0 has none.\nTraceback")) == "No memory. Tried 2 GiB"
    assert first_line(MemoryError()) == "MemoryError"
    assert len(first_line(RuntimeError("x" * 1000))) == 300


def test_a_cell_is_described_by_what_sets_it_apart():
    cells = [Accumulation(additions=1, cast=cast) for cast in (False, True)]
    assert describe(cells[1], cells) == "cast=True"
    assert describe(cells[0], cells[:1]) == "accumulator=fp32 addend=fp32 cast=False additions=1"


def round_to(value, precision):
    """A float32 rounded to a precision by NumPy; bf16, which it lacks, by rounding half of the bits to even."""
    value = numpy.float32(value)
    if precision == "fp16":
        return numpy.float32(numpy.float16(value))
    if precision == "bf16":
        bits = value.view(numpy.uint32)
        rounded = (bits + numpy.uint32(0x7FFF) + ((bits >> 16) & 1)) & numpy.uint32(0xFFFF0000)
        return rounded.view(numpy.float32)
    return value


@pytest.mark.parametrize("additions", [9, 1000])  # after 9 a cast shows in bf16, which later stalls either way
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("addend", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("accumulator", ["fp32", "fp16", "bf16"])
def test_sums_are_numpys(accumulator, addend, cast, additions):
    cell = Accumulation(accumulator=accumulator, addend=addend, cast=cast, additions=additions)
    metrics = {measurement.metric: measurement.mean for measurement in accumulation.measure(cell, CPU)}
    term = round_to(0.01, addend)
    assert metrics["rounded_addend"] == term
    total = numpy.float32(0)
    for _ in range(additions):
        total = round_to(total + (round_to(term, accumulator) if cast else term), accumulator)
    assert metrics["sum"] == total
    assert metrics["relative_error"] == pytest.approx(
        abs(float(total) - 0.01 * additions) / (0.01 * additions), rel=1e-9
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("autocast", "low"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_autocast_lowers_products_and_keeps_weights_loss_and_gradients(autocast, low, device):
    found = autocast_dtypes.measure(AutocastDtypes(autocast=autocast), torch.device(device))
    assert {measurement.metric: measurement.value for measurement in found} == {
        "parameters": "float32",
        "fc1_output": low,
        # Autocast raises layer normalization to fp32 on CUDA devices only.
        "norm_output": "float32" if device == "cuda" else low,
        "logits": low,
        "loss": "float32",
        "gradients": "float32",
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_is_timed_forward_and_backward(precision):
    cell = Attention(sequence=16, d=8, steps=4, precision=precision)
    metrics = {measurement.metric: measurement for measurement in attention.measure(cell, CPU)}
    assert {metrics[phase].n for phase in ("forward", "backward")} == {4}
    assert metrics["forward"].mean > 0
    assert metrics["memory_before_backward"].status == metrics["peak_memory"].status == "skipped"


def test_what_needs_a_gpu_is_skipped_on_a_cpu_with_a_reason(launch):
    cells = launch("flash", "--sequence", "16", "--implementation", "triton", "flex", "flash_attention_4")
    assert {metrics["cell"].status for metrics in cells} == {"skipped"}
    assert all("CUDA device" in metrics["cell"].message for metrics in cells)


@pytest.mark.parametrize("implementation", ["tiled", "plain", "sdpa_flash"])
def test_flash_measures_time_on_a_cpu(implementation):
    cell = Flash(sequence=40, d=16, implementation=implementation)
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cpu"))}
    both, parts = metrics["forward_backward"], [metrics[phase] for phase in ("forward", "backward")]
    assert both.mean == pytest.approx(sum(part.mean for part in parts))
    assert min(part.p20 for part in parts) > 0
    assert metrics["peak_memory"].status == "skipped"


@pytest.mark.parametrize("full_precision", [False, True])
def test_one_decision_of_the_kernels_is_taken_back_at_a_time(full_precision):
    problem = (full_precision, 64, 16 * 16384, 16384, True)
    forward, backward = forward_tiles(*problem), backward_tiles(*problem)
    for decision in typing.get_type_hints(FlashAblation)["without"].__args__:
        for usual, changed in (
            (forward, flash_ablation.forward_without(decision, forward)),
            (backward, flash_ablation.backward_without(decision, backward)),
        ):
            different = {
                field.name
                for field in dataclasses.fields(usual)
                if getattr(usual, field.name) != getattr(changed, field.name)
            }
            # What descriptors need goes only together with them.
            assert len(different - {"descriptors"}) <= 1
            if usual is backward and changed.descriptors:
                assert changed.preprocess
                assert changed.block_outer == changed.block_inner
            if decision in ("nothing", *flash_ablation.PRECISIONS):
                assert not different


@pytest.mark.parametrize("without", ["bf16x6", "block_outer"])
def test_kernels_without_a_decision_must_compute_the_same(without):
    pytest.importorskip("triton")
    cell = FlashAblation(precision="fp32", without=without)
    tiles = forward_tiles(True, 64, 16384, 16384, True)
    changed = flash_ablation.forward_without(without, tiles)

    def call(given, precision):
        right = given == tiles and precision is None
        return (torch.full((3,), 1.0 if right else 1.1),)

    with pytest.raises(AssertionError, match="not close"):
        flash_ablation._time("forward", cell, call, tiles, changed)


def test_every_experiment_has_a_module_that_measures_it():
    for name, kind in EXPERIMENTS.items():
        module = importlib.import_module(f"cs336_systems.benchmarks.{name}")
        assert callable(module.measure)
        assert module.__doc__.count(f"Launch: python -m cs336_systems.benchmarks.{name}") == 1
        assert kind.name == name
    assert {path.stem for path in Path(ROOT, "cs336_systems", "benchmarks").glob("[!_]*.py")} == {*EXPERIMENTS, "job"}


@pytest.mark.gpu
def test_a_cell_out_of_gpu_memory_is_a_row_and_frees_what_it_held(command, tmp_path):
    output = tmp_path / "rows.csv"
    arguments = ["--sequence", "64", "2000000", "128", "--d", "16", "--steps", "2", "--device", "cuda"]
    command("attention", *arguments, "--output", str(output))
    outcomes = {row.sequence: row.status for row in read_rows(Attention, [output]) if row.metric in ("cell", "forward")}
    assert outcomes == {64: "ok", 2_000_000: "oom", 128: "ok"}
    # Each input of the lost cell alone takes a gigabyte; cuBLAS keeps its workspaces.
    assert torch.cuda.memory_allocated() < 2**28


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["triton", "plain"])
def test_flash_measures_time_and_memory_on_a_gpu(implementation):
    cell = Flash(sequence=256, d=64, implementation=implementation, rep=5)
    torch._C._cuda_clearCublasWorkspaces()  # As before the first cell of a job.
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cuda"))}
    assert all(metrics[name].mean > 0 for name in ("forward", "backward", "forward_backward", "graph"))
    assert 0.1 < metrics["peak_memory"].mean < 1, "MiB: inputs, gradients, at most a few score matrices"
