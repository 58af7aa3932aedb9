"""The report with attention of a user's own, one right and one refused, in every grid, on measured rows."""

import pandas
import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WHOLE_CELL, Measurement
from scripts.answers import flash_benchmarking
from scripts.rendering.answer import Captioned, answers_of
from scripts.stages.self_checks import all_checks
from scripts.views.attention_calls import without_own
from scripts.views.data import frame, select
from tests.samples import planned_cells, planned_rows, rows_of
from tests.scripts.test_figures import figure_of
from tests.support.faults import relabel, rows, scale
from tests.support.tables import plain

WHY = "its dk has a relative error of 0.31 against causal attention, largest in head 3, rows 64 to 127"
REFUSED = Measurement(metric=WHOLE_CELL, status="skipped", message=f"not timed: {WHY}")
LEADERBOARD = {"heads": 16, "sequence": 16384, "d": 64, "precision": "bf16", "batch_size": 1, "causal": True}
MINE, WRONG = "mine=tests.support.own_attention:Right", "wrong=tests.support.own_attention:WrongKeys"


def add_like(tables, like, implementation, factor):
    """Tables with an implementation that takes a factor of another one's times, and in all nearly as long."""
    timed = ["forward", "backward", "forward_backward", "graph", "host", "handout", "matmul", "first_call"]
    for change in (
        relabel(rows("flash", implementation=like), implementation=implementation),
        scale(rows("flash", implementation=implementation, metric=timed), factor),
        scale(rows("flash", implementation=implementation, metric="wall"), 0.999),
    ):
        tables = change(tables)
    return tables


def tables_of(grids, like):
    """Measured rows of every planned cell, also of the user's own implementations, and no rows of other experiments."""
    tables = {name: frame(name, planned_rows(name, grids) if name == "flash" else []) for name in EXPERIMENTS}
    tables = add_like(tables, like, MINE, 0.9)
    refused = [cell for cell in planned_cells("flash", grids) if cell.implementation == like]
    lost = frame("flash", rows_of(refused, on_gpu=grids != "smoke", lost=lambda cell: REFUSED))
    tables["flash"] = pandas.concat([tables["flash"], lost.assign(implementation=WRONG)], ignore_index=True)
    return scale(rows("flash", implementation=WRONG, metric="wall"), 1.001)(tables)


@pytest.fixture(scope="module")
def h200():
    return tables_of("handout", "triton")


def words(figure):
    """The words of a figure: its legend, and its ticks."""
    labels = [text for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in (*labels, *(tick for axes in figure.axes for tick in axes.get_xticklabels()))]


def table_of(answer):
    return next(each.table for each in (*answer.results, *answer.details) if isinstance(each, Captioned))


def test_they_are_in_every_table_and_figure_and_have_an_answer_each(h200):
    answers = answers_of(flash_benchmarking.answers(h200))
    for name in ("peers", "leaderboard"):
        assert "mine" in [line[0] for line in table_of(answers[name]).rows], name
    refused = [line for line in table_of(answers["leaderboard"]).rows if line[0] == "wrong"]
    assert {cell for line in refused for cell in line[1:]} == {f"not measured: {WHY}"}
    mine, wrong = answers["own_1"], answers["own_2"]
    assert mine.asked == "Your mine against plain attention"
    times = h200["flash"].query(
        "metric == 'forward_backward' and d == 64 and sequence == 65536 and precision == 'bf16'"
    )
    times = select(times, compiled_call=False, heads=1).set_index("implementation")["median"]
    verdict = (
        f"Your mine is {times['plain'] / times[MINE]:.1f}× as fast as plain attention at 65 536 tokens, d = 64 "
        "(one head, bf16)."
    )
    assert plain(mine.verdict) == verdict
    assert len(table_of(mine).rows) == len(table_of(answers["against_plain"]).rows)
    assert plain(wrong.headline) == f"Not measured on this machine: {WHY}."
    assert "mine" in words(figure_of("flash_training", h200))
    assert [check for check in all_checks(h200) if check.outcome == "failed"] == []


def test_they_change_nothing_that_is_said_of_the_others(h200):
    with_them = answers_of(flash_benchmarking.answers(h200))
    alone = answers_of(flash_benchmarking.answers(h200 | {"flash": without_own(h200["flash"])}))
    assert with_them.keys() - alone.keys() == {"own_1", "own_2"}
    for name, answer in alone.items():
        assert with_them[name].headline == answer.headline, name
        assert with_them[name].more == answer.more, name
        assert with_them[name].reason == answer.reason, name


def test_fp32_in_tf32_is_named(h200):
    mine = select(h200["flash"], implementation=MINE, metric="launches", precision="fp32").iloc[:1]
    marked = pandas.concat(
        [h200["flash"], mine.assign(metric="rounding", unit="dtype", value="TF32")], ignore_index=True
    )
    answers = answers_of(flash_benchmarking.answers(h200 | {"flash": marked}))
    assert "mine (fp32 in TF32)" in [line[0] for line in table_of(answers["peers"]).rows]
    assert plain(answers["own_1"].verdict).startswith("Your mine (fp32 in TF32) is ")


def test_on_a_cpu_they_are_compared_at_the_longest_sequence():
    tables = tables_of("smoke", "plain")
    mine = answers_of(flash_benchmarking.answers(tables))["own_1"]
    verdict = "Your mine is 1.11× as fast as plain attention at 512 tokens, d = 64 (one head, bf16)."
    assert plain(mine.verdict) == verdict
    assert [check for check in all_checks(tables) if check.outcome == "failed"] == []
