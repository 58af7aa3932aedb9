"""The recorded report is the one that someone approved."""

import difflib

import pytest

from tests import golden

LINES_TOLD = 60


@pytest.fixture(scope="module")
def texts():
    return golden.texts()


@pytest.mark.parametrize("name", ["report.typ", "checks.csv", "figures.txt"])
def test_it_is_as_approved(texts, name):
    approved = (golden.FOLDER / name).read_text(encoding="utf-8")
    changes = list(difflib.unified_diff(approved.splitlines(), texts[name].splitlines(), "approved", "present", n=0))
    shown = "\n".join(line[:300] for line in changes[:LINES_TOLD])
    assert not changes, f"{len(changes)} lines of difference; if they are meant, `python -m tests.golden`:\n{shown}"
