"""Common rules of the comparisons of training on several ranks: the reader's own contenders, and one rule."""

import importlib
import re

import pandas
import pytest
from matplotlib.text import Text

from scripts.answers import beyond_nccl, naive_ddp_benchmarking
from scripts.checks import checks_of, fsdp
from scripts.checks import contenders as checks_of_contenders
from scripts.checks.law import Statement
from scripts.checks.laws import LAWS
from scripts.views.comparison import KINDS
from scripts.views.data import frame, select
from tests.samples import planned_rows
from tests.scripts.test_figures import figure_of
from tests.support.faults import NUMBERS, recorded
from tests.support.tables import GPU, plain, prose

LIKE = {"data_parallel": "overlapped", "optimizer_sharding": "sharded", "fsdp": "fsdp"}
"""Whose rows the reader's own have here, by experiment."""
OWN = "before=my_package:Before,mine=my_package:Mine,wrong=my_package:Wrong"
WHY = "after 3 steps a weight is off by 0.31"
UNMEASURED = f"not measured: {WHY}"


def with_own(measured):
    """Tables with three contenders that no experiment lists, one of them refused."""
    extended = {"all_reduce": measured["all_reduce"]}
    for name, kind in KINDS.items():
        column = "contender" if "contender" in kind.details else "wrapper"
        table = measured[name].assign(implementation=OWN)
        own = [select(table, **{column: LIKE[name]}).assign(**{column: mine}) for mine in ("before", "mine")]
        refused = select(table, metric="step", **{column: LIKE[name]})
        refused = refused.assign(
            **{column: "wrong"}, **dict.fromkeys(NUMBERS), status="skipped", message=f"not timed: {WHY}"
        )
        extended[name] = pandas.concat([table, *own, refused], ignore_index=True)
    return extended


@pytest.fixture(scope="module")
def tables():
    return with_own(recorded())


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("optimizer_state_sharding", r"With your optimizer it holds at most"),
        ("optimizer_state_sharding_accounting", rf"\[before\], \[.*\[mine\], \[.*{UNMEASURED}"),
        ("fsdp", rf"\[before\], \[.*\[mine\], \[.*{UNMEASURED}"),
        ("fsdp_accounting", r"\[before\], \[.*\[mine\], \["),  # of memory alone
    ],
)
def test_ones_own_are_in_every_section(section, words, tables):
    answers = importlib.import_module(f"scripts.answers.{section}").answers(tables)
    assert re.search(words, prose(section, answers, GPU))


def test_ones_own_wrappers_are_compared(tables):
    shown = naive_ddp_benchmarking.answers(tables)["share"].results[0]
    rows = {row[0]: row[1:] for row in shown.table.rows}
    assert {"before", "mine"} <= set(rows)
    assert set(rows["wrong"]) == {UNMEASURED}
    reason = plain(beyond_nccl.answers(tables)["gain"].reason)
    assert "Our best wrapper is 1." in reason
    assert "Your mine and PyTorch DDP are on par" in reason


@pytest.mark.parametrize(("name", "kind"), [("ddp_timelines", "data_parallel"), ("fsdp_gathers", "fsdp")])
def test_ones_own_are_in_every_picture(name, kind, tables):
    figure = figure_of(name, {each: tables[each] for each in (kind, "all_reduce")})
    shown = {text.get_text() for text in figure.findobj(Text)}
    assert {"before", "mine"} <= shown


def test_nothing_is_known_of_ones_own_that_checks_could_hold_them_to(tables):
    of_a_cpu = with_own({name: frame(name, planned_rows(name, "smoke")) for name in tables})
    modules = (checks_of_contenders, fsdp)
    checks = [check for each in (tables, of_a_cpu) for module in modules for check in checks_of(module, each)]
    stated = [Statement(*each) for each in LAWS.items() if {law.experiment for law in each[1]} < {*KINDS}]
    checks += [statement.check(each) for each in (tables, of_a_cpu) for statement in stated]
    assert {check.check for check in checks if check.outcome == "passed"} == {check.check for check in checks}
    assert "failed" not in {check.outcome for check in checks}
