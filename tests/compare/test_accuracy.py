"""Unchanged runs get no wrong verdicts, and a planted slow-down is detected: on recorded launches and in history."""

import statistics
import subprocess
from dataclasses import replace

import pytest

from cs336_systems.compare.results import read_results
from cs336_systems.compare.statistics import FITTED, run_to_run
from scripts.calibration.pairs import from_history, pairs_of
from scripts.calibration.run_to_run import fit
from scripts.docs.compare_accuracy import PAGE, error_rates, held_out, of_launches
from tests.samples import ROOT

LAUNCHES = ROOT / "tests/compare/h200_launches"
"""Two launches of the jobs in docs/compare.md on one H200, to which nothing was fitted."""


def test_two_launches_on_one_gpu():
    result = error_rates(of_launches(LAUNCHES))
    assert result.times >= 40
    assert result.wrong == 0
    assert result.wrong_others <= 0.01
    assert result.resolvable >= 0.6
    assert result.detected >= 0.95


def test_a_model_is_as_wide_as_unchanged_runs_differ():
    """Fitted to those two launches, and to the same with differences three times as large."""
    pairs = pairs_of(read_results(str(LAUNCHES / name)).rows for name in ("1", "2"))
    assert len(pairs) >= 40
    once = fit(pairs)
    factor = [(pair.b.median / pair.a.median) ** 2 for pair in pairs]
    moved = [replace(pair.b, median=more * pair.b.median) for pair, more in zip(pairs, factor, strict=True)]
    wider = fit([replace(pair, b=b) for pair, b in zip(pairs, moved, strict=True)])
    assert once.base < 0.01
    assert wider.base > 2 * once.base


@pytest.mark.slow
def test_the_pairs_in_the_history_of_the_record():
    """Each pair has a verdict from a model fitted without its runs; the model in use is as wide as one of all pairs."""
    shallow = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    if shallow.returncode or int(shallow.stdout) < 100:
        pytest.skip("there is no history here")
    pairs = from_history()
    result = error_rates([held_out(pairs)], plantings=50)
    assert result.times >= 1000
    assert result.wrong <= 0.01 * result.times
    assert result.wrong_others <= 0.01
    assert result.detected >= 0.95
    assert result.detected_of_all >= 0.85
    counts = result.line("")[1:4]
    assert f" | {' | '.join(counts)} | " in (ROOT / PAGE).read_text(encoding="utf-8"), (
        f"stale: python -m {error_rates.__module__}"
    )
    fitted, used = fit(pairs), run_to_run(on_gpu=True)
    ratios = [used.deviation(pair.a) / fitted.deviation(pair.a) for pair in pairs]
    assert 0.8 < statistics.median(ratios) < 1.25, f"python -m scripts.calibration.run_to_run writes {FITTED} again"
