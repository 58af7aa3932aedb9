"""No sentence of an approved report says what its numbers cannot: rules that hold on every machine."""

import re

import pytest

from tests.golden import FOLDER

NARROW = "\u202f"


@pytest.fixture(params=sorted(FOLDER.glob("*.typ")), ids=lambda path: path.stem)
def sentences(request):
    """Sentences of a report outside of its tables, as they are read."""
    text = request.param.read_text(encoding="utf-8")
    prose = [line for line in text.splitlines() if not line.startswith(("[", "#table", "table."))]
    words = re.sub(r'#"([^"]*)";', r"\1", "\n".join(prose))
    return re.split(r"(?<=[.\]])\s+", words)


def test_no_bandwidth_is_above_what_memory_gives_unless_from_a_cache(sentences):
    of_peak = re.compile(rf"([\d.]+){NARROW}% of the peak bandwidth(, partly from L2)?")
    matches = [match for sentence in sentences for match in of_peak.findall(sentence)]
    assert not [share for share, cached in matches if float(share) > 90 and not cached]


def test_who_is_faster_is_named_first(sentences):
    assert not [each for each in sentences if re.search(r"\b(0\.\d+|1\.00)× as fast", each)]


def test_no_paragraph_of_the_first_page_begins_with_a_pronoun(sentences):
    assert not [each for each in sentences if re.match(r"#paragraph\[[^]]*\]\[(They|It|Its)\b", each)]


def test_no_time_or_memory_is_negative(sentences):
    assert not [each for each in sentences if re.search(rf"(?<![\w.])-\d[\d.]*{NARROW}", each)]


def test_no_apostrophe_is_printed_as_a_prime(sentences):
    assert not [each for each in sentences if re.search(r"\d's\b", each)]


def test_a_span_has_two_ends(sentences):
    spans = re.compile(r"(?<![\d.])([\d.]+(?:\u202f\S+?)?) to \1(?![\d.×])")
    assert not [each for each in sentences if spans.search(each)]


def test_a_caption_names_no_side_that_may_be_empty(sentences):
    captions = [each for each in sentences if each.startswith("#picture(")]
    assert not [each for each in captions if re.search(r"\b([Ll]eft|[Rr]ight),", each)]
