"""The page of recorded machines is that of their rows, and holds nothing that a browser would act on."""

import json

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row, write_job
from scripts.recorded_machines import PAGE, RECORDED, page
from tests.samples import ROOT, provenance


def test_it_is_up_to_date():
    made = (ROOT / PAGE).read_text(encoding="utf-8")
    assert made == page(ROOT / RECORDED), f"{PAGE} is stale: python -m scripts.recorded_machines makes it anew"


def test_a_machine_of_few_rows_has_a_section(tmp_path):
    origin = provenance(cpu="A | <script>[x](javascript:y)`", utc="2026-01-02T23:04:05-02:00", revisions="runner=0")
    measured = (summarize("sum", "", [10.0]), summarize("wall", "s", [89.0]))
    rows = [make_row(Accumulation(), one, origin) for one in measured]
    write_job(tmp_path / "cpu/raw/accumulation/all.csv", Accumulation, rows)
    (tmp_path / "cpu/card").mkdir()
    card = json.loads(next((ROOT / RECORDED).glob("*/card/*.json")).read_text(encoding="utf-8"))
    card["utc"], card["verdict"]["sentence"] = "2026-01-02T03:04:05+00:00", "As fast as the [data sheet] says."
    (tmp_path / "cpu/card/1.json").write_text(json.dumps(card))
    text = page(tmp_path)
    assert "\n## A ? ?script??x?(javascript:y)?\n" in text
    assert "\n| `accumulation` | 1 | 1 | 1 | 0 | 1.5 | 2026-01-03 | all |\n" in text
    assert "\n| card of 2026-01-02 | As fast as the ?data sheet? says. |\n" in text
    assert "GPUs" not in text
    assert "speed relative to" not in text
