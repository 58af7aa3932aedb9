"""The reports of three machines are those that someone approved, and any other part of their rows makes one too."""

import difflib
import re

import pandas
import pytest

from scripts.stages.writeup import environment
from tests import golden
from tests.samples import ROOT

LINES_TOLD = 60
ANSWER = re.compile(r'^#answer\("(.*?)", \[.*?\], \[(.*)\]\)$', re.MULTILINE)
VERDICT = re.compile(r'^finding\("(.*?)", \[.*?\], \[(.*)\]\),$', re.MULTILINE)
NO_NUMBER = re.compile(r".{0,60}(?<![\w.])(?:nan|inf|NaN|None(?! of))\b.{0,30}")
BRANCHES = 200
NARROW = "\u202f"
WRONG = {
    "the slower one named first": re.compile(r"\b(0\.\d+|1\.00)× as fast"),
    "a negative time or memory": re.compile(rf"(?<![\w.])-\d[\d.]*{NARROW}"),
    "an apostrophe that is printed as a prime": re.compile(r"\d's\b"),
    "a span from a number to itself": re.compile(rf"(?<![\d.])([\d.]+(?:{NARROW}\S+?)?) to \1(?![\d.×])"),
    "a paragraph of the first page that begins with a pronoun": re.compile(r"^#paragraph\[[^]]*\]\[(They|It|Its)\b"),
    "a caption that names a side, which may be empty": re.compile(r"^#picture\((?s:.*)\b([Ll]eft|[Rr]ight),"),
}
"""Faults that no sentence has, whichever the machine."""


@pytest.fixture(scope="module")
def texts():
    return golden.texts()


def plain(text):
    """Markup without the escapes of strings."""
    return re.sub(r'#"(.*?)";', r"\1", text)


@pytest.mark.parametrize("name", sorted(path.name for path in golden.FOLDER.glob("*-*")))
def test_it_is_as_approved(texts, name):
    approved = (golden.FOLDER / name).read_text(encoding="utf-8")
    changes = list(difflib.unified_diff(approved.splitlines(), texts[name].splitlines(), "approved", "present", n=0))
    shown = "\n".join(line[:300] for line in changes[:LINES_TOLD])
    assert not changes, f"{len(changes)} lines of difference; if they are meant, `python -m tests.golden`:\n{shown}"


def test_what_was_recorded_is_sound():
    approved = pandas.read_csv(golden.FOLDER / "h200-checks.csv")
    assert list(approved.loc[approved["outcome"] == "failed", "check"]) == []


@pytest.mark.parametrize("machine", ["h200", "laptop", "sparse"])
def test_an_answer_is_short(texts, machine):
    text = plain(texts[f"{machine}-report.typ"])
    answers, verdicts = ANSWER.findall(text), VERDICT.findall(text)
    assert len(answers) == len(verdicts) > 40
    assert [name for name, answer in answers if len(answer.split()) > 50] == []
    assert [name for name, verdict in verdicts if len(verdict) > 100] == []


def lacking(text):
    """Places of a report, but for code that it quotes, where a number that there is not is printed as one."""
    return NO_NUMBER.findall(plain(re.sub(r"torch\.inf|raw\(.*?\)|queries\[:, None\]", "", text)))


@pytest.mark.parametrize("machine", ["h200", "laptop", "sparse"])
def test_an_approved_report_prints_numbers_only(texts, machine):
    assert lacking(texts[f"{machine}-report.typ"]) == []


def sentences(machine):
    """Sentences of an approved report outside of its tables, as they are read."""
    lines = (golden.FOLDER / f"{machine}-report.typ").read_text(encoding="utf-8").splitlines()
    prose = [line for line in lines if not line.startswith(("[", "#table", "table."))]
    return re.split(r"(?<=[.\]])\s+", re.sub(r'#"([^"]*)";', r"\1", "\n".join(prose)))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("machine", ["h200", "laptop", "sparse"])
def test_no_sentence_says_what_its_numbers_cannot(machine, wrong):
    assert [sentence for sentence in sentences(machine) if WRONG[wrong].search(sentence)] == []


@pytest.mark.parametrize("machine", ["h200", "laptop", "sparse"])
def test_no_bandwidth_is_above_what_memory_gives_unless_from_a_cache(machine):
    of_peak = re.compile(rf"([\d.]+){NARROW}% of the peak bandwidth(, partly from L2)?")
    matches = [match for sentence in sentences(machine) for match in of_peak.findall(sentence)]
    assert not [share for share, cached in matches if float(share) > 90 and not cached]


@pytest.mark.parametrize(("machine", "seed", "cells"), [("h200", 0, 0.05), ("laptop", 1, 0.3)])
def test_any_part_of_the_rows_makes_a_report(machine, seed, cells):
    assert lacking(golden.machine(machine).thinned(seed, cells, 0.7).report()["report.typ"]) == []


def test_templates_hold_what_is_fixed():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "report").rglob("*.j2")]
    assert environment(ROOT / "report").block_start_string == "<%"
    assert sum(len(re.findall(r"<%-?\s*(?:if|elif|for)\b", source)) for source in sources) <= BRANCHES
