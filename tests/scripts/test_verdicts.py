"""The report and the run's verdict say of each self-check what became of it."""

import re
from pathlib import Path

import pandas
import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan
from scripts.rendering.contents import read_contents
from scripts.stages.verdict import write_verdict
from scripts.stages.writeup import compute, fill
from scripts.views.coverage import cover
from scripts.views.data import frame
from tests.samples import ROOT, config, pdf_text, squeeze, typeset_without_pictures

CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
PLAN = make_plan(config(machine="cpu"))
TABLES = {name: frame(name, []) for name in EXPERIMENTS}


def checks_of(outcomes):
    rows = [(f"check {number}", outcome, f"detail {number}") for number, outcome in enumerate(outcomes)]
    return pandas.DataFrame(rows, columns=["check", "outcome", "detail"])


OUTCOMES_OF_CHECKS = ["failed", "passed", "not applicable", "passed", "failed", "not applicable"]


def test_each_check_has_its_own_outcome(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    source = fill(CONTENTS, compute(CONTENTS, PLAN, TABLES, cover(PLAN, TABLES), checks_of(OUTCOMES_OF_CHECKS)))
    rows = re.findall(r'\[#"check (\d)";\], outcome\("(.*?)"\), \[#"detail (\d)";\],', source)
    expected = [(str(number), outcome, str(number)) for number, outcome in enumerate(OUTCOMES_OF_CHECKS)]
    assert rows == expected
    assert "2 of 4 applicable self-checks passed" in source
    typeset_without_pictures(source, tmp_path, tmp_path / PLAN.results / "figures")
    printed = pdf_text(Path(tmp_path, "writeup.pdf"))
    for number, outcome, _ in expected:
        assert (squeeze(f"check {number} detail {number}") in printed) == (outcome == "failed")


@pytest.fixture
def verdict_on(tmp_path):
    def run(*outcomes, strict=False):
        checks, verdict = tmp_path / "checks.csv", tmp_path / "verdict.txt"
        checks_of(outcomes).to_csv(checks, index=False)
        verdict.unlink(missing_ok=True)
        try:
            write_verdict(str(checks), "results/cpu/writeup.pdf", str(verdict), strict)
        except SystemExit as refusal:
            assert not verdict.exists()
            return str(refusal.code)
        return verdict.read_text()

    return run


@pytest.mark.parametrize("strict", [False, True])
def test_the_verdict_counts_what_applies(verdict_on, strict):
    line = "The report is results/cpu/writeup.pdf (2 of 2 self-checks passed)\n"
    assert verdict_on("passed", "not applicable", "passed", strict=strict) == line


def test_a_failed_check_fails_a_strict_run_only(verdict_on):
    assert "(1 of 2 self-checks passed)" in verdict_on("passed", "failed", "not applicable")
    words = "strict is true, and 1 self-check failed: check 1: detail 1"
    assert verdict_on("passed", "failed", strict=True) == words
