"""`snakemake compare`: a page without measuring, a failed run where a time is slower, a sentence for bad input."""

import json
import re

import pytest

from tests.support.planted_runs import copy_of, scaled
from tests.workflow.project import NO_CELLS, copy_project, snakemake

pytestmark = pytest.mark.workflow

JOB = "flash/leaderboard"


@pytest.mark.slow
def test_a_page_is_made_and_a_slower_time_fails_the_run(tmp_path):
    folder = copy_project(tmp_path / "project", NO_CELLS, sections=())
    copy_of(JOB, tmp_path / "before it", lambda row: scaled(row, 0.8) if row.metric == "backward" else row)
    options = ["compare", "--config", "recorded=nvidia-h200", f"with={tmp_path / 'before it'}", "price=3.5"]
    slower = "slower in recorded/nvidia-h200/raw (ratio to "
    assert re.search(re.escape(slower) + r".*before it, with its interval\):$", snakemake(folder, *options), re.M)
    made = folder / "results/recorded/nvidia-h200/comparison/before it"
    comparison = json.loads((made / "comparison.json").read_text())
    assert comparison["counts"]["slower"] > 0
    files = {path.name for path in made.iterdir()}
    assert files == {f"comparison.{ending}" for ending in ("csv", "html", "json", "pdf", "svg", "typ")}
    (made / "comparison.pdf").unlink()
    printed = snakemake(folder, *options, "fail_if_slower=5%", check=False)
    assert "slower by 5% or more:" in printed
    assert "Error in rule compare" in printed
    assert (made / "comparison.pdf").exists()
