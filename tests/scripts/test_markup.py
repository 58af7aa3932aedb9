"""Strings and numbers as Typst markup: what a PDF's reader sees of them."""

import math

import pytest
import typst

from scripts.rendering import markup
from scripts.rendering.markup import FONT_FOLDER, Table, Typst, escape, finalize, string
from tests.samples import pdf_text, squeeze

NASTY = [
    "#let x = 1; #panic() $x^2$ @nowhere <label>",
    "{{ jinja }} {% raw %} << name >> <% set x %> <# gone #>",
    "'single' \"double\" `raw` \\back\\ \\u{41} \\",
    "*bold* _slanted_ = heading // comment /* more */ ~ -- ...",
    "[brackets] (parens) https://example.org a/b%c^d&e|f",
    "Ωμέγα Привет",
]


@pytest.fixture
def typeset(tmp_path):
    """The text that a PDF of some markup shows, without white space."""

    def run(source):
        path = tmp_path / "page.typ"
        path.write_text('#set text(font: ("Libertinus Serif", "DejaVu Sans"))\n#let reason(it) = it\n' + source)
        typst.compile(str(path), output=str(tmp_path / "page.pdf"), font_paths=[str(FONT_FOLDER)])
        return pdf_text(tmp_path / "page.pdf")

    return run


@pytest.mark.parametrize("text", NASTY)
def test_strings_come_out_as_they_are(typeset, text):
    assert typeset(f"before {escape(text)} after") == squeeze(f"before{text}after")
    assert typeset(f"#raw({string(text)})") == squeeze(text)
    assert squeeze(text) in typeset(Table(["a"], [[text]]).markup())


def test_markup_in_a_table_is_left_as_it_is(typeset):
    assert typeset(Table(["a"], [[Typst("*one* #(1 + 1)")]]).markup()) == "aone2"


def test_control_characters_are_spaces(typeset):
    assert string("a\x00\x1b[31m\r\n\tb\x7fc") == '"a [31m b c"'
    assert typeset(escape("a\x00\nb")) == "ab"


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, '#"not measured";'),
        ("#x", '#"#x";'),
        (Typst("#x"), "#x"),
        (0, "0"),
        (9999, "9999"),
        (10_000, "10\u202f000"),
        (1_234_567, "1\u202f234\u202f567"),
    ],
)
def test_templates_print_text_whole_numbers_and_markup(value, printed):
    assert finalize(value) == printed
    assert isinstance(finalize(value), Typst)


@pytest.mark.parametrize("value", [1.5, math.nan, True, [1], {"a": 1}])
def test_a_value_without_a_format_is_refused(value):
    with pytest.raises(TypeError, match="needs a format"):
        finalize(value)


@pytest.mark.parametrize("name", ["sig", "ms", "seconds", "times", "percent"])
@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_not_a_number_is_not_measured(name, value):
    assert markup.FILTERS[name](value) == '#"not measured";'


def test_a_reason_spans_the_columns_it_empties(typeset):
    why = "not measured: out of memory"
    table = Table(
        ["size", "fp32", "bf16", "ratio"],
        [["small", "1", "2", "3"], ["#xl", why, why, why]],
        groups=[("g", 4), ("of no columns", 0)],
    )
    assert table.markup().count("colspan: 3") == 1
    assert typeset(table.markup()) == "gsizefp32bf16ratiosmall123#xl" + squeeze(why)
