"""The report with attention of a user's own, one right and one refused, in every grid, on made-up rows."""

import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import plan_jobs
from cs336_systems.record.measurement import WHOLE_CELL, Measurement
from scripts.answers import flash_benchmarking
from scripts.rendering.answer import Captioned, answers_of
from scripts.self_checks import all_checks
from scripts.views.attention_calls import without_own
from scripts.views.data import frame
from tests.samples import H200, config, provenance, rows_of
from tests.scripts.test_figures import figure_of
from tests.support.tables import plain

WHY = "its dk is off from that of causal attention by 0.31 of it, most in head 3, rows 64 to 127"
REFUSED = Measurement(metric=WHOLE_CELL, status="skipped", message=f"not timed: {WHY}")
OWN = {"mine": "tests.support.own_attention:Right", "wrong": "tests.support.own_attention:WrongKeys"}


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
    """The words of a figure: its legend, and its ticks."""
    labels = [text for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in (*labels, *(tick for axes in figure.axes for tick in axes.get_xticklabels()))]


def table_of(answer):
    """The table of an answer."""
    return next(each.table for each in (*answer.evidence, *answer.details) if isinstance(each, Captioned))


def test_they_are_in_every_table_and_figure_and_have_an_answer_each(h200):
    found = answers_of(flash_benchmarking.answers(h200))
    for name in ("peers", "leaderboard"):
        assert "mine" in [line[0] for line in table_of(found[name]).rows], name
    refused = [line for line in table_of(found["leaderboard"]).rows if line[0] == "wrong"]
    assert {cell for line in refused for cell in line[1:]} == {f"not measured: {WHY}"}
    mine, wrong = found["own_1"], found["own_2"]
    assert plain(mine.verdict) == "mine takes 4.35 ms."
    assert plain(mine.more) == "Your mine is 1.08× as fast as ours at 16 × 16384 tokens, d = 64, bf16."
    whole = h200["flash"][h200["flash"]["metric"] == "wall"]
    shapes = (len(whole) - len(without_own(whole))) / 2
    assert len(table_of(mine).rows) == shapes
    assert plain(wrong.headline) == f"wrong, at 16 × 16384 tokens, d = 64, bf16: not measured: {WHY}."
    for name in ("flash_throughput", "flash_training"):
        assert "mine" in words(figure_of(name, h200)), name
    assert [check for check in all_checks(h200) if check.outcome == "failed"] == []


def test_they_change_nothing_that_is_said_of_the_others(h200):
    with_them = answers_of(flash_benchmarking.answers(h200))
    alone = answers_of(flash_benchmarking.answers(h200 | {"flash": without_own(h200["flash"])}))
    assert with_them.keys() - alone.keys() == {"own_1", "own_2"}
    for name, answer in alone.items():
        assert with_them[name].headline == answer.headline, name
        assert with_them[name].more == answer.more, name
        assert with_them[name].reason == answer.reason, name


def test_on_a_cpu_they_are_compared_at_the_longest_sequence():
    tables = tables_of("smoke", provenance())
    mine = answers_of(flash_benchmarking.answers(tables))["own_1"]
    assert "at 1 × 512 tokens, d = 64, bf16" in plain(mine.more)
    assert "as fast as plain" in plain(mine.more)
    assert "mine" in words(figure_of("flash_throughput", tables))
    assert [check for check in all_checks(tables) if check.outcome == "failed"] == []
