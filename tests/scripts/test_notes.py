"""A reader's own words in the report: Markdown that cannot act as Typst, and numbers that name one row."""

import re
from pathlib import Path

import pandas as pd
import pytest
import typst

from scripts.rendering.notes import note, note_files, number, read_notes
from scripts.tools.log import Refused
from scripts.views.data import select
from tests.samples import ROOT
from tests.support.faults import recorded

SECTIONS = ["flash_forward", "conclusion"]
CELL = "training_ladder step part=steps size=2.7B batch_size=4 context=1024"
MARKDOWN = """\
Our *first* kernel **spilled**: see [the paper](https://arxiv.org/abs/2307.08691), `tl.dot`, and
#panic("no") $x$ @tab <a> \\ {a b}.

- one
- two
"""


def test_markdown_is_marked_and_all_else_is_literal():
    text = note(MARKDOWN, lambda name: f"({name})")
    page = typst.compile(f"#let target() = 1\n{text}".encode(), root=str(ROOT), format="svg").decode()
    assert "<svg" in page
    assert '#emph[#"first";]' in text
    assert '#strong[#"spilled";]' in text
    assert '#link("https://arxiv.org/abs/2307.08691")[#"the paper";]' in text
    assert '#raw("tl.dot")' in text
    assert "(a b)" in text
    assert [item[1] for item in re.finditer(r'#list\.item\[#"(\w+)";\]', text)] == ["one", "two"]


def test_a_number_is_the_tables():
    assert number(f"{CELL} rung=overlap", recorded()) == "165\u202fms"
    assert number(f"{CELL.replace('step', 'step.p80', 1)} rung=overlap", recorded()) == "166\u202fms"


def test_a_number_without_a_unit_is_a_number():
    assert number("accumulation sum accumulator=fp32 addend=fp32 cast=True", recorded()) == "10.0"


def test_ones_own_implementation_has_its_name_of_the_report():
    flash = recorded()["flash"]
    row = select(flash, implementation="triton", metric="forward").iloc[:1]
    tables = {"flash": pd.concat([flash, row.assign(implementation="mine=../folder/flash:f", median=1.25)])}
    assert number("flash forward implementation=mine", tables) == "1.25\u202fms"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ladder step", "the experiment of {ladder step} is 'ladder'; allowed: accumulation, "),
        ("", "the experiment of {} is ''; allowed: accumulation, "),
        ("flash speed", "metric of {flash speed} is 'speed'; allowed: "),
        ("flash forward.best", "the statistic of {flash forward.best} is 'best'; allowed: mean, median, "),
        ("flash forward d 64", "{flash forward d 64} has 'd' after the metric; allowed: KEY=VALUE"),
        ("flash forward colour=red", "a key of {flash forward colour=red} is 'colour'; allowed: "),
        (f"{CELL} rung=sled", "rung of {training_ladder step .* rung=sled} is 'sled'; allowed: .*overlap"),
        (CELL, "matches 1[0-9] rows; allowed: one; they differ in .*rung"),
    ],
)
def test_a_number_without_its_row_is_refused(name, sentence, tmp_path):
    (tmp_path / "conclusion.md").write_text(f"It takes {{{name}}}.")
    with pytest.raises(ValueError, match=re.sub(r"[{}()]", lambda sign: f"\\{sign[0]}", sentence)) as error:
        read_notes(SECTIONS, recorded(), tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'conclusion.md'}: ")


def test_a_note_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "conclusion.md").write_text("Wörter", encoding="latin-1")
    with pytest.raises(Refused, match=r"conclusion.md: 'utf-8' codec can't decode byte"):
        read_notes(SECTIONS, {}, tmp_path)


@pytest.mark.parametrize("name", ["pie.md", "conclusion.txt"])
def test_a_note_on_no_section_is_refused(name, tmp_path):
    (tmp_path / name).write_text("Words.")
    with pytest.raises(ValueError, match=f"{name} belongs to no section; allowed: SECTION.md, of flash_forward, "):
        note_files(SECTIONS, tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(__file__)], ids=["folder", "link"])
def test_a_note_that_is_no_file_is_refused(make, tmp_path):
    make(tmp_path / "flash_forward.md")
    with pytest.raises(ValueError, match=r"flash_forward\.md is a folder or a link; allowed: a text file"):
        note_files(SECTIONS, tmp_path)
    with pytest.raises(ValueError, match="is not a folder; allowed: a folder of notes"):
        note_files(SECTIONS, Path(__file__))


def test_no_folder_and_hidden_files_are_no_notes(tmp_path):
    assert not read_notes(SECTIONS, {}, tmp_path / "notes")
    (tmp_path / ".conclusion.md.swp").write_text("half of")
    assert not read_notes(SECTIONS, {}, tmp_path)
