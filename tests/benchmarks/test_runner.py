"""How cells are measured one after the other, and the outcome of those that cannot be measured."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

from cs336_systems.benchmarks import runner
from cs336_systems.benchmarks.runner import first_line, measure_cells, measure_or_explain, reason_of
from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.block_memory import BlockMemory
from cs336_systems.measure.memory import Unavailable, is_out_of_memory
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import read_jobs

CPU = torch.device("cpu")


def test_every_cell_starts_from_the_same_seed_with_the_memory_of_none():
    def draw(cell, device):
        return [summarize("draw", "", [torch.rand(1).item()])]

    cells = [Accumulation(additions=number) for number in (1, 2, 3)]
    drawn = [measurements[0].mean for _, measurements in measure_cells(cells, draw, CPU, seed=5)]
    other = [measurements[0].mean for _, measurements in measure_cells(cells[:1], draw, CPU, seed=6)]
    assert len(set(drawn)) == 1
    assert other[0] != drawn[0]


def test_a_rehearsal_is_measured_first_and_dropped(monkeypatch):
    measured = []

    def measure(cell, device):
        measured.append(cell.additions)
        return [summarize("draw", "", [torch.rand(1).item()])]

    def draws(cells):
        return [(cell, measurements[0].mean) for cell, measurements in measure_cells(cells, measure, CPU, seed=5)]

    cells = [Accumulation(additions=number) for number in (1, 2)]
    without = draws(cells)
    rehearsal = staticmethod(lambda cell: Accumulation(additions=10 * cell.additions))
    monkeypatch.setattr(Accumulation, "rehearsal", rehearsal)
    assert draws(cells) == without
    assert measured == [1, 2, 10, 1, 2]


def test_what_replaces_our_kernels_is_not_measured_under_their_name(monkeypatch):
    monkeypatch.setattr(runner, "kernel_obstacle", lambda device: "as on a T4")
    cell = BlockMemory(size="small", precision="bf16", attention="flash")
    (row,) = measure_or_explain(lambda *_: pytest.fail("it was measured"), cell, torch.device("cuda"))
    assert (row.status, row.message) == ("skipped", "this project's kernels do not run here: as on a T4")


@pytest.mark.gpu
def test_a_cell_out_of_gpu_memory_is_a_row_and_frees_what_it_held(command, tmp_path):
    output = tmp_path / "rows.csv"
    arguments = ["--sequence", "64", "2000000", "128", "--d", "16", "--steps", "2", "--device", "cuda"]
    command("attention", *arguments, "--output", str(output))
    outcomes = {row.sequence: row.status for row in read_jobs(Attention, [output]) if row.metric in ("cell", "forward")}
    assert outcomes == {64: "ok", 2_000_000: "oom", 128: "ok"}
    # Each input of the lost cell alone takes a gigabyte; cuBLAS keeps its workspaces.
    assert torch.cuda.memory_allocated() < 2**28


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
    assert (row.metric, row.status, row.message) == ("cell", status, "inside")


def too_large():
    errors = pytest.importorskip("triton.runtime.errors")
    raise errors.OutOfResources(131_072, 101_376, "shared memory")


def does_not_compile():
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    from tests.support.kernels import impossible

    source = ASTSource(impossible, signature={"x": "*fp32"}, constexprs={})
    compile_kernel(source, target=GPUTarget("cuda", 80, 32))


def passes_fail():
    raise RuntimeError("PassManager::run failed")


def lacks_an_abacus():
    raise Unavailable("no abacus here")


TOO_LARGE = "a kernel needs 131072 bytes of shared memory, and this GPU has 101376"


@pytest.mark.parametrize(
    ("fail", "status", "message"),
    [
        (too_large, "failed", TOO_LARGE),
        (does_not_compile, "failed", "a kernel does not compile: 3 rows are no tile"),
        (passes_fail, "failed", "PassManager::run failed"),
        (lacks_an_abacus, "skipped", "no abacus here"),
    ],
)
def test_what_this_machine_cannot_run_costs_its_cell_only(fail, status, message):
    def measure(cell, device):
        if cell.additions == 2:
            fail()
        return [summarize("draw", "", [1.0])]

    cells = [Accumulation(additions=number) for number in (1, 2, 3)]
    rows = [measurements for _, measurements in measure_cells(cells, measure, CPU, seed=0)]
    assert [[row.metric for row in cell] for cell in rows] == [["draw", "wall"], ["cell", "wall"], ["draw", "wall"]]
    assert (rows[1][0].status, rows[1][0].message) == (status, message)


def test_torch_compile_gives_the_reason_of_the_kernel_inside():
    with pytest.raises(Exception, match="out of resource") as raised:
        too_large()
    assert reason_of(InductorError(raised.value, None)) == TOO_LARGE


@pytest.mark.parametrize("bug", [AssertionError("wrong"), RuntimeError("shapes cannot be multiplied"), KeyError("x")])
def test_a_bug_ends_the_job(bug):
    def measure(cell, device):
        raise bug

    with pytest.raises(type(bug)):
        measure_or_explain(measure, Accumulation(), CPU)


def test_messages_are_one_short_line():
    assert first_line(RuntimeError("No memory. Tried 2 GiB. GPU 0 has none.\nTraceback")) == "No memory. Tried 2 GiB"
    assert first_line(MemoryError()) == "MemoryError"
    assert len(first_line(RuntimeError("x" * 1000))) == 300
