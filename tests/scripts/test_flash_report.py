"""The report with attention of a user's own, one right and one refused, in every grid, on made-up rows."""

import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement
from cs336_systems.plan import plan_jobs
from scripts.answers import flash_benchmarking
from scripts.self_checks import all_checks
from scripts.views.attention_calls import without_own
from scripts.views.data import frame
from tests.prose import prose
from tests.samples import H200, config, provenance, rows_of
from tests.scripts.test_figures import figure_of

WHY = "its dk is off from that of causal attention by 0.31 of it, most in head 3, rows 64 to 127"
REFUSED = Measurement(metric=WHOLE_CELL, status="skipped", message=f"not timed: {WHY}")
OWN = {"mine": "tests.support.own_attention:Right", "wrong": "tests.support.own_attention:WrongKeys"}
OF_OTHERS = ("grids", "tiled", "board", "board_fastest", "longest", "training_shapes", "short_waiting", "disturbed")
"""Answers that a user's own takes no part in."""


def tables_of(scale, origin):
    """Made-up rows of every planned cell, and no rows of other experiments."""
    jobs = plan_jobs("flash", config(implementations={"attention": OWN}), scale)
    cells = [cell for job in jobs.values() for cell in job.cells]
    rows = rows_of(cells, origin, lambda cell: REFUSED if cell.implementation.startswith("wrong=") else None)
    return {name: frame(name, rows if name == "flash" else []) for name in EXPERIMENTS}


@pytest.fixture(scope="module")
def h200():
    return tables_of("handout", provenance(**H200))


def words(figure):
    """What a figure says: its legend, and its ticks."""
    labels = [text for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in (*labels, *(tick for axes in figure.axes for tick in axes.get_xticklabels()))]


def test_they_are_in_every_table_figure_and_verdict(h200):
    answers = flash_benchmarking.answers(h200)
    board = [line for line in answers["leaderboard"].rows if line[0] in OWN]
    assert [(name, d) for name, d, *_ in board] == [("mine", "64"), ("wrong", "64"), ("mine", "128"), ("wrong", "128")]
    assert {cell for name, _, *cells in board if name == "wrong" for cell in cells} == {f"not measured: {WHY}"}
    assert "mine" in answers["training_all"].columns
    assert answers["short"].columns.count("mine") == 2
    for table in ("against", "training"):
        assert "mine" in [line[0] for line in answers[table].rows]
    whole = h200["flash"][h200["flash"]["metric"] == "wall"]
    assert len(answers["own"].rows) == len(whole) - len(without_own(whole))
    assert sum(f"not measured: {WHY}" in line for line in answers["own"].rows) == len(answers["own"].rows) / 2
    text = prose("flash_benchmarking", answers, provenance(**H200))
    assert f"At 16 × 16384 tokens, d = 64, bf16, compiled, _wrong_ was not timed: {WHY}." in text
    assert "compiled, _mine_ takes 4.35 ms;" in text
    assert "the fastest of the others, ours, takes 1.08× as long." in text
    for name in ("flash_latency", "flash_throughput", "flash_memory", "flash_training", "flash_leaderboard"):
        assert "mine" in words(figure_of(name, h200)), name
    assert [check for check in all_checks(h200) if check.outcome == "failed"] == []


def test_they_change_nothing_that_is_said_of_the_others(h200):
    answers = flash_benchmarking.answers(h200)
    alone = flash_benchmarking.answers(h200 | {"flash": without_own(h200["flash"])})
    assert alone["own"] is None
    for name in OF_OTHERS:
        assert answers[name] == alone[name], name
    for name in ("leaderboard", "against", "training"):
        assert [line for line in answers[name].rows if line[0] not in OWN] == alone[name].rows


def test_on_a_cpu_they_are_compared_at_the_longest_sequence():
    tables = tables_of("smoke", provenance())
    text = prose("flash_benchmarking", flash_benchmarking.answers(tables), provenance())
    assert "At 1 × 512 tokens, d = 64, bf16, _mine_ takes" in text
    assert "the fastest of the others, plain, takes" in text
    assert "mine" in words(figure_of("flash_latency", tables))
    assert [check for check in all_checks(tables) if check.outcome == "failed"] == []
