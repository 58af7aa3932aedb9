"""How sentences take their values, and tables their lines."""

from math import nan

import pytest

from scripts.rendering.answer import Answer, Captioned, Facts, say
from scripts.rendering.markup import Table, Typst


@pytest.mark.parametrize("fast", [None, {"ms": None}, {"ms": nan}, {"ms": 0.0}])
def test_a_quotient_of_what_is_missing_leaves_no_hole(fast):
    sentence = "It is {slow[ms] / fast[ms]:times} as fast."
    assert say(sentence, slow={"ms": 3.0}, fast={"ms": 2.0}) == "It is 1.50× as fast."
    assert say(sentence, "So much is known.", slow={"ms": 3.0}, fast=fast) == "So much is known."


@pytest.mark.parametrize("other", [None, {"ms": None}, {"ms": nan}, {"ms": 3.0}, {"ms": 4.0}])
def test_a_difference_is_how_much_larger_the_first_is(other):
    sentence = "It takes {slow[ms] - other[ms]:ms} longer."
    assert say(sentence, slow={"ms": 3.0}, other={"ms": 2.0}) == "It takes 1.00\u202fms longer."
    assert say(sentence, "So much is known.", slow={"ms": 3.0}, other=other) == "So much is known."


def test_markup_among_the_sentences_is_finished():
    facts = Facts(ms=2.0, where="here")
    assert facts.say(Typst("${x}$ is a set."), "", "It takes {ms:ms} {where}.", where=Typst("_there_")) == (
        "${x}$ is a set. It takes 2.00\u202fms _there_."
    )


def test_a_name_that_nobody_gives_is_a_mistake():
    with pytest.raises(KeyError, match="speed"):
        say("It takes {speed:ms}.", time=1.0)


def test_an_answer_holds_one_figure_or_table_like_several():
    table, empty = Captioned(Table(["a"], [["1"]]), "Full."), Captioned(Table(["a"], []), "Empty.")
    assert Answer("(a)", results="figure", details=[empty, table]).results == ["figure"]
    assert Answer("(a)", results=table, details=[empty, table]).details == [table]
