"""Generated pages are up to date, whoever wrote the rows, and hold nothing that a browser would act on."""

import re
import shutil

import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.card import Card
from cs336_systems.measure.gpus import GPUS
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row, write_job
from scripts.docs import recorded_machines
from scripts.docs.__main__ import PAGES
from scripts.docs.gpus import CLASSES
from tests.samples import ROOT, provenance


@pytest.mark.parametrize("page", PAGES)
def test_it_is_up_to_date(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == PAGES[page](text), f"{page} is stale: python -m scripts.docs {page} updates it"


def test_every_listed_gpu_is_of_a_class_on_the_page():
    elsewhere = {gpu.name for gpu in GPUS if gpu.capability not in CLASSES}
    assert elsewhere == {gpu.name for gpu in GPUS if "V100" in gpu.name or "B300" in gpu.name}


def test_a_machine_of_few_rows_has_a_section(tmp_path):
    origin = provenance(cpu="A | <script>[x](javascript:y)`", utc="2026-01-02T23:04:05-02:00", revisions="runner=0")
    measured = (summarize("sum", "", [10.0]), summarize("wall", "s", [89.0]))
    rows = [make_row(Accumulation(), one, origin) for one in measured]
    write_job(tmp_path / "cpu/raw/accumulation/all.csv", Accumulation, rows)
    wrong = summarize("wrong_numbers", "", [1.0], details={"work": "fp32", "device": "[0](x)"})
    write_job(tmp_path / "cpu/raw/card/1-all.csv", Card, [make_row(Card(instrument="matmul"), wrong, origin)])
    text = recorded_machines.page("# Machines\n\n## Another\n", tmp_path)
    assert text.startswith("# Machines\n\n## A ? ?script")
    assert "Another" not in text
    assert "\n## A ? ?script??x?(javascript:y)?\n" in text
    assert "\n| `accumulation` | 1 | 1 | 1 | 0 | 1.5 | 2026-01-03 | all |\n" in text
    assert "\n| card of 2026-01-02 | Faulty: wrong results (GPU ?0?(x)). |\n" in text
    assert "GPUs" not in text
    assert "speed relative to" not in text


def test_another_environment_of_a_machine_is_compared_with_it(tmp_path):
    launches = ROOT / "tests/compare/h200_launches"
    shutil.copytree(launches / "1", tmp_path / "nvidia-h200")
    shutil.copytree(launches / "2", tmp_path / "newer-triton/nvidia-h200")
    text = recorded_machines.page("# Machines\n", tmp_path)
    machine, _, environment = text.partition("\n### newer-triton\n")
    assert "\n| label | `nvidia-h200` |\n" in machine
    assert re.search(r"^  0 faster, \d+ same, 0 slower, \d+ cannot be decided$", environment, re.M)
    assert "\n## " not in environment
