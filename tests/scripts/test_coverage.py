"""Coverage: planned cells against measured ones, and why the others were not."""

import pytest

from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan
from cs336_systems.record.measurement import WALL, WHOLE_CELL, Measurement
from cs336_systems.record.rows import make_row
from scripts.views.coverage import cover, losses
from scripts.views.data import load, select
from tests.samples import config, planned_cells, provenance, rows_of, write_raw

LOST_ON_A_CPU = {
    "peak_memory": "PyTorch counts peak memory on CUDA devices only",
    "device_allocations": "PyTorch counts its allocations on CUDA devices only",
    "device_busy": "only a CUDA device works apart from the host, which may keep it waiting",
}


def test_coverage_counts_every_planned_cell_once(tmp_path):
    lost = {
        128: Measurement(metric=WHOLE_CELL, status="oom", message="none left"),
        256: Measurement(metric=WHOLE_CELL, status="failed", message="no compiler"),
        512: Measurement(metric=WHOLE_CELL, status="skipped", message="no abacus"),
    }
    cells = planned_cells("end_to_end", "handout")
    run = [cell for cell in cells if cell.size != "large"]
    rows = rows_of(run, lost=lambda cell: lost.get(cell.context) if cell.size == "xl" else None)
    tables = {name: load(name, write_raw(tmp_path, name, rows if name == "end_to_end" else [])) for name in EXPERIMENTS}
    counts = cover(make_plan(config(machine="1 x NVIDIA H200")), tables).set_index(["experiment", "grid"])
    # A training step in both precisions per size and context; nothing of large was run.
    assert counts.loc[("end_to_end", "eager")].to_dict() == {
        "planned": 40,
        "ok": 26,
        "incomplete": 0,
        "oom": 2,
        "skipped": 2,
        "failed": 2,
        "not run": 8,
        "unplanned": 0,
    }
    assert counts.loc[("end_to_end", "inference"), "skipped"] == 2
    assert counts.loc[("accumulation", "all"), "not run"] == counts.loc[("accumulation", "all"), "planned"] == 18
    assert counts["planned"].sum() == sum(len(planned_cells(name, "handout")) for name in EXPERIMENTS)


@pytest.mark.parametrize("status", ["oom", "skipped", "failed"])
def test_a_cell_of_which_each_metric_was_lost_is_not_ok(tmp_path, status):
    plan = make_plan(config(machine="cpu"))
    first, *others = planned_cells("attention", "smoke")
    rows = rows_of([first, *others], on_gpu=False)
    lost = {"n": 0, "status": status, "message": "made up", "samples": "", "value": ""}
    lost |= dict.fromkeys(("mean", "std", "median", "p20", "p80"))
    of_first = [row for row in rows if row.sequence == first.sequence and row.compiled == first.compiled]
    kept = [row.model_copy(update=lost) if row in of_first and row.metric != WALL else row for row in rows]
    covered, _ = coverage_of("attention", kept, plan, tmp_path)
    assert (covered[status].sum(), covered["ok"].sum()) == (1, len(others))


@pytest.fixture
def wide(monkeypatch):
    """A plan for one GPU in which checkpointing takes four, and its cells."""
    monkeypatch.setattr(Checkpointing, "processes", 4)
    return make_plan(config(machine="1 x NVIDIA H200")), planned_cells("checkpointing", "handout")


def coverage_of(name, rows, plan, folder):
    """The coverage of an experiment's grids and what its cells lack, where only these rows were measured."""
    tables = {other: load(other, write_raw(folder, other, rows if other == name else [])) for other in EXPERIMENTS}
    covered, lost = cover(plan, tables), losses(plan, tables)
    return select(covered, experiment=name), select(lost, experiment=name)


def test_cells_that_need_more_gpus_are_not_run_and_say_so(wide, tmp_path):
    plan, cells = wide
    covered, lost = coverage_of("checkpointing", [], plan, tmp_path)
    assert covered["not run"].sum() == len(cells)
    assert lost["cells"].sum() == len(cells)
    assert set(lost["reason"]) == {"it needs 4 GPUs, but 1 is visible"}


def test_what_a_wider_machine_measured_counts(wide, tmp_path):
    plan, cells = wide
    covered, lost = coverage_of("checkpointing", rows_of(cells[1:]), plan, tmp_path)
    # The first cell ran out of memory, as another one did.
    assert (covered["ok"].sum(), covered["oom"].sum(), covered["not run"].sum()) == (len(cells) - 2, 1, 1)
    assert list(select(lost, status="not run")["cells"]) == [1]
    assert list(select(lost, metric=WHOLE_CELL, status="oom")["cells"]) == [1]


def test_a_cell_that_is_planned_no_more_has_no_grid(tmp_path):
    cell = Attention(sequence=7)
    lost = Measurement(metric=WHOLE_CELL, status="failed", message="no compiler")
    rows = [make_row(cell, lost, provenance())]
    covered, lost = coverage_of("attention", rows, make_plan(config(machine="cpu")), tmp_path)
    assert covered["failed"].sum() == 0
    assert covered.set_index("grid")["unplanned"].to_dict() == {"all": 0, "–": 1}
    assert lost[lost["status"] == "failed"][["cells", "reason"]].values.tolist() == [[1, "no compiler"]]


def test_lost_metrics_are_told_from_lost_cells(tmp_path):
    plan = make_plan(config(machine="cpu"))
    cells = planned_cells("end_to_end", "smoke")
    failed = Measurement(metric=WHOLE_CELL, status="failed", message="no compiler")
    rows = rows_of(cells, on_gpu=False, lost=lambda cell: failed if cell.compiled else None)
    covered, lost = coverage_of("end_to_end", rows, plan, tmp_path)
    compiled = sum(cell.compiled for cell in cells)
    assert covered["failed"].sum() == compiled > 0
    reported = {(row.metric, row.status): (row.cells, row.reason) for row in lost.itertuples()}
    expected = {(metric, "skipped"): (len(cells) - compiled, why) for metric, why in LOST_ON_A_CPU.items()}
    assert reported == expected | {(WHOLE_CELL, "failed"): (compiled, "no compiler")}
