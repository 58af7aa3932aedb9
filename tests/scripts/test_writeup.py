"""The report, by the real scripts: its sections, its numbers, and strings that must not act as markup."""

import contextlib
import re
import shutil
from pathlib import Path

import jinja2
import pandas
import pytest

from cs336_systems.discovery import modules
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.grids import TRACED
from cs336_systems.plan import Plan, make_plan, plan_to_json
from cs336_systems.record.measurement import WHOLE_CELL, Measurement
from scripts.rendering.contents import read_contents
from scripts.rendering.style import note, save
from scripts.stages.draw import draw
from scripts.stages.self_checks import write_checks
from scripts.stages.tables import merge_all
from scripts.stages.typeset import typeset
from scripts.stages.writeup import compute, environment, fill, picture_of, write
from scripts.views.data import load
from tests.samples import EMPTY_PICTURE, ROOT, config, pdf_text, planned_cells, rows_of, squeeze, write_raw
from tests.support.made_once import made_once

CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
CLEAN = {"git_commit": "0123abc", "git_dirty": False, "revisions": "runner=1", "utc": "2026-01-02T03:04:05+00:00"}
"""Where rows are said to come from."""
H200_PLAN = make_plan(config(machine="1 x NVIDIA H200", scale="quick"))
CPU_PLAN = make_plan(config(machine="cpu"))
NASTY = (
    "#panic() $x_1$ @tab-times <checks> {{a}} << b >> <% set c %> <# d #> \"q\" 'r' \\n \\ *bold* _e_ `f` [g] // h "
    "Ωмега"
)
CHINESE, SHOWN_CHINESE = "测 中", "[U+6D4B] [U+4E2D]"


class Report:
    """A finished report and what it was made of."""

    def __init__(self, results: Path):
        self.results = results
        self.pdf = results / "writeup.pdf"
        self.source = results / "writeup.typ"
        self.text = pdf_text(self.pdf)
        self.figures = results / "figures"
        self.tables = {name: load(name, results / "tables" / f"{name}.csv") for name in EXPERIMENTS}

    def says(self, text: str) -> bool:
        return squeeze(text) in self.text


def typeset_again(plan: Plan) -> None:
    """Fill and typeset the report from the tables, coverage and self-checks that are there."""
    results = plan.results
    write(
        plan=str(results / "plan.json"),
        tables={name: str(results / "tables" / f"{name}.csv") for name in EXPERIMENTS},
        coverage=str(results / "coverage.csv"),
        checks=str(results / "checks.csv"),
        source=str(results / "writeup.typ"),
    )
    typeset(results / "writeup.typ", results / "writeup.pdf")


def write_report(folder: Path, plan: Plan, rows: dict, trace: str = "", *, pictures: bool = True) -> None:
    """Make the report that the pipeline makes of rows, by experiment, and of a trace, or with empty pictures."""
    shutil.copytree(ROOT / "report", folder / "report")
    results = plan.results
    with contextlib.chdir(folder):
        tables = {name: str(results / "tables" / f"{name}.csv") for name in EXPERIMENTS}
        raw = [str(write_raw(plan.raw.parent, name, rows[name])) for name in rows]
        results.mkdir(parents=True, exist_ok=True)
        (results / "plan.json").write_text(plan_to_json(plan))
        merge_all(*(str(results / "plan.json"), raw, str(results / "tables"), str(results / "coverage.csv")), 1)
        (results / "figures").mkdir()
        plan.traces.mkdir(exist_ok=True)
        traces = {name: shutil.copy(trace, plan.trace(name)) for name in TRACED if trace}
        for name, figure in CONTENTS.figures.items():
            output = results / "figures" / f"{name}.svg"
            output.write_text(EMPTY_PICTURE)
            if pictures:
                draw(figure.script, str(output), figure.sources(tables, traces))
        write_checks(tables, str(results / "checks.csv"))
        typeset_again(plan)


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The report of the quick grids on an H200; the words of one failure are nasty."""

    def make(folder):
        failed = Measurement(metric=WHOLE_CELL, status="failed", message=f"{NASTY}\n\x1b[31m{CHINESE} שלום")
        origin = CLEAN | {"git_dirty": True, "cpu": NASTY}
        first = planned_cells("end_to_end", "quick")[0]
        rows = {
            name: rows_of(planned_cells(name, "quick"), lost=lambda cell: failed if cell == first else None, **origin)
            for name in EXPERIMENTS
        }
        write_report(folder, H200_PLAN, rows, str(ROOT / "tests" / "traces" / "eager.json.gz"))

    return Report(made_once(tmp_path_factory, "h200", make) / H200_PLAN.results)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """The report of the smoke grids on a processor with a nasty name."""

    def make(folder):
        origin = CLEAN | {"cpu": NASTY + CHINESE}
        rows = {name: rows_of(planned_cells(name, "smoke"), on_gpu=False, **origin) for name in EXPERIMENTS}
        write_report(folder, CPU_PLAN, rows, pictures=False)

    return Report(made_once(tmp_path_factory, "cpu", make) / CPU_PLAN.results)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    folder = made_once(tmp_path_factory, "nothing", lambda folder: write_report(folder, CPU_PLAN, {}))
    return Report(folder / CPU_PLAN.results)


def test_no_template_module_or_caption_is_left_over():
    templates = {path.name.removesuffix(".typ.j2") for path in (ROOT / "report" / "sections").glob("*")}
    assert templates == set(CONTENTS.sections)
    assert {path.stem for path in (ROOT / "report" / "captions").glob("*")} == {"figure", "table", "checks"}
    assert modules("scripts.answers") == sorted(f"scripts.answers.{name}" for name in CONTENTS.sections)
    used = {f"scripts.figures.{figure.script}" for figure in CONTENTS.figures.values()}
    assert modules("scripts.figures") == sorted(used)


def test_every_picture_is_shown_once_and_drawn(h200, nothing):
    shown = re.findall(r'^#picture\("(\w+)"', h200.source.read_text(), re.MULTILINE)
    assert len(shown) == len(set(shown))
    missing = set(CONTENTS.figures) - set(shown)
    for name in shown:
        drawn, note = ((report.figures / f"{name}.svg").read_bytes() for report in (h200, nothing))
        assert b"<image" not in drawn  # vectors only
        if drawn.count(b"<path") <= 2 * note.count(b"<path"):
            missing.add(name)
    excused = {name for name, figure in CONTENTS.figures.items() if figure.not_recorded}
    assert missing <= excused, (
        f"the recorded H200's report lacks {missing - excused}: name it in an answer's results, or, if no H200 has "
        "measured its rows, say so under not_recorded in report/contents.yaml"
    )
    assert missing == excused, f"{excused - missing} are drawn: remove not_recorded in report/contents.yaml"


def test_a_picture_that_is_not_listed_is_told():
    with pytest.raises(ValueError, match="the report shows the figure 'flash_speed'; allowed: host_costs, "):
        picture_of(CONTENTS, "x", {})("flash_speed")


def test_a_failures_words_come_out_literally(h200):
    assert h200.says(NASTY)
    assert h200.says(f"[31m{SHOWN_CHINESE}")
    assert h200.says("שלום") or h200.says("שלום"[::-1])


def test_a_processors_name_comes_out_literally(cpu):
    assert cpu.text.count(squeeze(f"CPU ({NASTY}{SHOWN_CHINESE})")) > 10  # title, headers, captions
    assert cpu.text.count(squeeze(NASTY)) > cpu.text.count(squeeze(f"CPU ({NASTY}"))  # table of versions


def test_a_report_of_nothing_says_so(nothing):
    assert nothing.says("not run")
    assert not re.search(r"\d\s?ms", nothing.source.read_text().partition("= About this report")[0])
    planned = sum(len(planned_cells(name, "smoke")) for name in EXPERIMENTS)
    assert nothing.says(f"0 of {planned} planned cells were measured")
    assert nothing.says("0 of 0 applicable checks")


def test_the_machine_is_named_and_doubts_are_told(h200, cpu):
    assert h200.says("Measured on this machine: NVIDIA H200, 2026-01-02.")
    assert h200.says("Measured at commit 0123abc.")
    assert h200.says("uncommitted changes")
    assert not cpu.says("uncommitted changes")
    assert cpu.says("The smoke scale")
    assert not h200.says("The smoke scale")


def rendered(report: Report, plan: Plan, tables: dict) -> str:
    """The Typst source of other tables under another plan, with the coverage and self-checks of a report."""
    coverage, checks = (pandas.read_csv(report.results / f"{name}.csv") for name in ("coverage", "checks"))
    with contextlib.chdir(ROOT):
        return fill(CONTENTS, compute(CONTENTS, plan, tables, coverage, checks))


def test_rows_of_other_code_and_of_several_commits_are_told(cpu):
    words = "has changed since some of these rows were measured"
    assert words not in cpu.source.read_text()
    flash = cpu.tables["flash"].assign(git_commit="9876543210", git_dirty=None, utc="2026-01-04T00:00:00+00:00")
    flash.loc[flash.index[7], "revisions"] = "flash=1 runner=0"
    without_git = cpu.tables["attention"].assign(git_commit="")
    text = rendered(cpu, CPU_PLAN, cpu.tables | {"flash": flash, "attention": without_git})
    assert f'The code that measures #"flash"; {words}' in text
    # In the order of measurement.
    assert '#"2026-01-02"; to #"2026-01-04";' in text
    assert 'commits #"0123abc";, #"unknown"; and #"9876543";, in this order' in text


def test_the_same_tables_give_the_same_bytes(cpu, tmp_path):
    shutil.copytree(cpu.pdf.parents[2], tmp_path, dirs_exist_ok=True)
    again = tmp_path / CPU_PLAN.results / "writeup.pdf"
    again.unlink()
    with contextlib.chdir(tmp_path):
        typeset_again(CPU_PLAN)
    assert again.read_bytes() == cpu.pdf.read_bytes()
    assert again.with_suffix(".typ").read_bytes() == cpu.source.read_bytes()


def test_an_undefined_name_is_an_error(tmp_path):
    (tmp_path / "a.j2").write_text("<< summary.machine >> <% if summary.speed %>fast<% endif %>")
    with pytest.raises(jinja2.UndefinedError, match="speed"):
        environment(tmp_path).get_template("a.j2").render(summary={"machine": "x"})


def test_a_typesetting_error_is_told_with_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.typ").write_text("= Fine\n#nowhere()\n")
    with pytest.raises(RuntimeError, match=r"bad\.typ: (?s:.*)unknown variable: nowhere(?s:.*)2"):
        typeset(Path("bad.typ"), Path("bad.pdf"))


def test_results_can_be_a_link_to_another_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("project").mkdir()
    Path("disk").mkdir()
    monkeypatch.chdir("project")
    Path("results").symlink_to(tmp_path / "disk")
    save(note("not measured"), "results/figure.svg")
    Path("results/writeup.typ").write_text('#image("/results/figure.svg")')
    typeset(Path("results/writeup.typ"), Path("results/writeup.pdf"))
    assert (tmp_path / "disk/writeup.pdf").read_bytes().startswith(b"%PDF")
