"""The page of a comparison: a PDF, a page of the web edition, and a figure that shows what has changed."""

import json

import pypdfium2
import pytest

from cs336_systems.compare.comparison import NOT_CALIBRATED, compare
from cs336_systems.compare.output import to_json
from cs336_systems.compare.results import read_results
from scripts.stages.comparison_page import headline, page, write
from tests.support.planted_runs import copy_of, scaled

JOBS = ("flash/leaderboard", "training_ladder/small")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for job in JOBS:
        copy_of(job, folder / "A_1 #x")
        copy_of(job, folder / "B", lambda row: scaled(row, 1.2) if row.metric == "forward" else row)
    compared = compare(read_results(str(folder / "A_1 #x")), read_results(str(folder / "B")), price_a=3.5, price_b=2)
    return json.loads(json.dumps(to_json(compared)))


def test_the_pdf_the_page_and_the_figure_are_made(comparison, tmp_path):
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(comparison))
    write(file, tmp_path / "out")
    with pypdfium2.PdfDocument(tmp_path / "out/comparison.pdf") as pdf:
        text = " ".join(pdf[number].get_textpage().get_text_range() for number in range(len(pdf)))
    assert headline(comparison) in " ".join(text.split())
    assert "price of" in text
    html = (tmp_path / "out/comparison.html").read_text()
    assert html.count("data:image/svg+xml") == 1
    assert html.count("<tr>") > len(comparison["cells"])  # All times, not only those that have changed.
    assert (tmp_path / "out/comparison.svg").read_text().count("slower") >= 1


def test_the_verdict_comes_first(comparison):
    slower = comparison["counts"]["slower"]
    assert slower > 0
    assert headline(comparison) == f"{slower} times are slower in B; none is faster."
    none = comparison | {"counts": {"faster": 0, "slower": 0, "same": 3, "cannot be decided": 1}}
    assert headline(none) == "No time is faster or slower."
    assert headline(comparison | {"counts": dict.fromkeys(none["counts"], 0)}) == "Nothing can be decided."


def test_what_communication_bounds_is_counted(comparison):
    cells = [cell | {"reason": NOT_CALIBRATED, "verdict": "cannot be decided"} for cell in comparison["cells"][:2]]
    assert f'[#"{NOT_CALIBRATED}";], [#"2";]' in page(comparison | {"cells": cells}, "out")
    assert "communication-bound" not in page(comparison, "out")


def test_what_differs_is_said(comparison):
    assert "Both runs have the same hardware, driver, versions and commit." in page(comparison, "out")
    other = comparison | {"differs": {"torch": ["2.11.0", "2.12.0"]}, "same_code": {"flash": False}}
    text = page(other, "out")
    assert "PyTorch" in text
    assert "2.12.0" in text
    assert "The measured code differs for" in text
