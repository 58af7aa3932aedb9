"""The page carries the tables' rows."""

import json
from pathlib import Path

import pytest

from cs336_systems.plan import make_plan
from cs336_systems.record.measurement import WHOLE_CELL, Measurement
from scripts.rendering.rows import rows_json, text
from scripts.stages.tables import write
from tests.samples import ROOT, config, planned_cells, rows_of

OOM = Measurement(metric=WHOLE_CELL, status="oom", message="out of memory")


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({"machine": "1 x NVIDIA A100-SXM4-80GB"}, True),
        ({"machine": "2 x NVIDIA H200"}, False),
        ({"machine": "cpu"}, False),
        ({"recorded": "nvidia-h200"}, False),
    ],
)
def test_another_gpu_is_compared(changes, compared):
    plan = make_plan(config(**changes), ROOT / "recorded")
    assert plan.reference == (Path("recorded/nvidia-h200/raw") if compared else None)


def test_each_row_has_its_numbers_and_the_command_that_measures_it(tmp_path):
    plan = make_plan(config(machine="cpu"))
    cells = planned_cells("flash", "smoke")
    rows = rows_of(cells, on_gpu=False, lost=lambda cell: OOM if cell == cells[0] else None)
    write("flash", rows, str(tmp_path / "flash.csv"))
    entry = json.loads(rows_json(plan, {"flash": tmp_path / "flash.csv"}, {}))["flash"]
    columns = entry["columns"]
    names = ["sequence", "implementation", "metric", "median", "samples", "status"]
    shown = set(zip(*(columns[name] for name in names), strict=True))
    assert shown == {tuple(text(getattr(row, name)) for name in names) for row in rows}
    for sequence, job in zip(columns["sequence"], entry["job"], strict=True):
        assert f" {sequence}" in entry["commands"][job]
