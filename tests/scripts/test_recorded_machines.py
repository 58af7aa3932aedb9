"""The page of recorded machines is that of their rows, and holds nothing that a browser would act on."""

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row, write_job
from scripts.recorded_machines import PAGE, RECORDED, page
from tests.samples import ROOT, provenance


def test_it_is_up_to_date():
    made = (ROOT / PAGE).read_text(encoding="utf-8")
    assert made == page(ROOT / RECORDED), f"{PAGE} is stale: python -m scripts.recorded_machines makes it anew"


def test_a_machine_of_few_rows_has_a_section(tmp_path):
    origin = provenance(cpu="A | <script>[x](javascript:y)`", utc="2026-01-02T23:04:05-02:00")
    row = make_row(Accumulation(), summarize("sum", "", [10.0]), origin)
    write_job(tmp_path / "cpu/raw/accumulation/all.csv", Accumulation, [row])
    text = page(tmp_path)
    assert "\n## A ? ?script??x?(javascript:y)?\n" in text
    assert "\n| `accumulation` | 1 | 1 | 1 | 0 | 2026-01-03 |\n" in text
    assert "GPUs" not in text
    assert "speed relative to" not in text
