"""The report on the 2026 leaderboard's step, where it or a part of it was measured."""

import pytest

from cs336_systems.accounting.leaderboard import PARAMETERS, flops_by_part
from scripts.answers.training_leaderboard import answers
from tests.support.faults import recorded
from tests.support.tables import plain


def table_of(*parts, **changes):
    """Recorded rows of some parts."""
    table = recorded()["leaderboard"]
    return table[table["part"].isin(parts)].assign(**changes)


def said(table):
    """The answer, and its table's cells."""
    tables = {"leaderboard": table, "all_reduce": recorded()["all_reduce"]}
    answer = answers(tables)["time"]
    assert len(plain(answer.verdict)) <= 100
    return plain(" ".join([answer.verdict, answer.more, answer.reason])), answer.evidence[0].table.rows


def milliseconds(table, part, metric="step"):
    row = table[(table["part"] == part) & (table["metric"] == metric)]
    return row["median"].iloc[0]


def test_a_measured_step_is_compared_with_the_record():
    table = table_of("step", "rank", "one_card")
    step = milliseconds(table, "step")
    text, rows = said(table)
    assert f"On two H200s the step takes {step / 1e3:.2f} s; the record, on two B200s, is 3.84 s." in text
    assert f"This is {sum(flops_by_part().values()) / 2 / 989e12 / step * 1e3:.0%}".replace("%", " %") in text
    assert [row[0] for row in rows] == [
        "the step, on two GPUs",
        "one rank's part, alone",
        "one sequence and all weights, on one GPU",
    ]


def test_two_ranks_follow_from_one_between_limits():
    table = table_of("rank")
    alone = milliseconds(table, "rank") / 1e3
    text, _ = said(table)
    # The recorded all-reduce of 1 GB takes 3.2 ms, and the weights have 16 GB in bf16.
    sent = 3.2e-3 * 2 * PARAMETERS / 1e9
    assert f"Two H200s need between {alone:.2f} s, with all communication hidden, and {alone + sent:.2f} s" in text


def test_other_sizes_are_not_the_leaderboards():
    table = table_of("rank", size="nano", context=64)
    assert answers({"leaderboard": table}) == answers({"leaderboard": table[:0]})


@pytest.mark.parametrize("part", ["step", "rank", "one_card"])
def test_a_lost_step_leaves_the_closed_forms(part):
    table = table_of(part)
    assert answers({"leaderboard": table[table["metric"] != "step"]}) == answers({"leaderboard": table[:0]})
