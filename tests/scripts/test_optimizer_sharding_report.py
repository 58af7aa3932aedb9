"""What the report says of sharded optimizers, on worked-out memory and steps; its checks, on doctored tables."""

import contextlib
import importlib
import re

import pytest

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement, format_samples, parse_samples
from scripts.answers import optimizer_state_sharding, optimizer_state_sharding_accounting
from scripts.answers.optimizer_state_sharding_accounting import steps_against
from scripts.checks import optimizer_sharding as checks
from scripts.draw import draw
from scripts.rendering.contents import read_contents
from scripts.rendering.markup import Typst
from scripts.tables import merge
from scripts.views.comparison import contenders
from scripts.views.data import load, select
from scripts.views.optimizer_sharding import memory, peaks
from scripts.writeup import environment, typeset
from tests.samples import H200, ROOT, pdf_text, planned_cells, provenance, rows_of, squeeze, write_raw

CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
NAMES = [name for name in CONTENTS.sections if name.startswith("optimizer_state_sharding")]
HANDOUT = [OptimizerSharding(processes=ranks, precision=each) for ranks in (2, 4) for each in ("fp32", "bf16")]
GPU_CELL = {"processes": 2, "precision": "bf16"}


def table_of(folder, scale, gpu, lost=lambda cell: None):
    cells = HANDOUT if scale == "handout" else planned_cells("optimizer_sharding", scale)
    rows = rows_of(cells, provenance(**(H200 if gpu else {})), lost)
    raw = write_raw(folder, "optimizer_sharding", rows)
    merge("optimizer_sharding", [str(raw)], str(folder / "table.csv"), "nvidia-h200" if gpu else "cpu")
    return load("optimizer_sharding", folder / "table.csv")


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The handout's cells on an H200. Not to be changed."""
    return table_of(tmp_path_factory.mktemp("h200"), "handout", gpu=True)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """The smoke cells on a CPU. Not to be changed."""
    return table_of(tmp_path_factory.mktemp("cpu"), "smoke", gpu=False)


def doctor(table, column, value, **wanted):
    table = table.copy()
    index = select(table, **wanted).index
    assert len(index)
    table.loc[index, column] = value
    return table


def failures(table):
    return [found.detail for found in checks.checks({"optimizer_sharding": table}) if found.outcome == "failed"]


DOCTORED = [
    ("sharded", "after_update", "held", "optimizer_state", "7600 9000", "sharded, 2 GPUs, bf16: 16600.0 of 15"),
    ("sharded", "before_update", "held", "gradients", "9000 9000", "gradients 9000.0 of 76"),
    ("unsharded", "initialized", "held", "parameters", "7000 7000", "parameters 7000.0 of 76"),
    ("zero_redundancy", "before_update", "allocated", "", "20000 20000", "rest -"),
    ("zero_redundancy", "after_update", "peak_memory", "", "2000*2", r"peak 2000\.0 MiB"),
    ("sharded", "before_update", "peak_memory", "", "70000*2", r"70000 MiB, \+"),
]


@pytest.mark.parametrize(("contender", "moment", "metric", "part", "samples", "complaint"), DOCTORED)
def test_a_doctored_count_fails_its_check_and_is_named(h200, contender, moment, metric, part, samples, complaint):
    assert not failures(h200)
    table = doctor(h200, "samples", samples, contender=contender, moment=moment, metric=metric, part=part, **GPU_CELL)
    found = failures(table)
    assert any(re.search(complaint, detail) for detail in found), found


def test_memory_is_that_of_the_rank_that_has_most(h200):
    cell = {"contender": "sharded", "moment": "after_update", **GPU_CELL}
    table = doctor(h200, "samples", "30000 40000", metric="allocated", **cell)
    table = doctor(table, "samples", "9000 7000", metric="held", part="optimizer_state", **cell)
    row = select(memory(table), **cell).iloc[0]
    assert (row["allocated"], row["optimizer_state"]) == (40000, 7000)
    assert row["rest"] == pytest.approx(40000 - row["parameters"] - row["gradients"] - 7000)
    assert (row["least_state"], row["whole_state"]) == (7000, 16000)
    peak = select(peaks(memory(doctor(h200, "samples", "1 99999", metric="peak_memory", **cell))), **GPU_CELL)
    assert select(peak, contender="sharded")["peak"].item() == 99999


def test_what_the_sections_conclude(h200):
    answers = optimizer_state_sharding_accounting.answers({"optimizer_sharding": h200})
    # Weights, gradients and state are 16 P; with 2 ranks 12 P are left, with 4 10 P, beside twenty MiB.
    least, cell = answers["saved"]["least"]
    assert least == pytest.approx(10 / 16, rel=1e-3)
    assert cell.startswith("4 GPUs")
    assert answers["saved"]["most"][0] == pytest.approx(12 / 16, rel=1e-3)
    assert answers["error"]["most"][0] == pytest.approx(0.01, rel=0.01)
    first = answers["against"].rows[0]
    assert first[:2] == ["sharded", "PyTorch's fastest"]
    assert [ratio.startswith("≈") for ratio in first[2:]] == [True, False] * 2  # fp32's samples scatter by more
    assert [found["bytes"] for found in answers["communication"]] == [1.5, 1.0]
    rows = contenders(OptimizerSharding, h200)
    slower = doctor(h200, "median", 1e4, contender="sharded", metric="step", **GPU_CELL)
    slower = doctor(slower, "p20", 1e4, contender="sharded", metric="step", **GPU_CELL)
    slower = doctor(slower, "p80", 1e4, contender="sharded", metric="step", **GPU_CELL)
    table = steps_against(contenders(OptimizerSharding, slower))
    (ratios,) = [row[2:] for row in table.rows if row[:2] == ["sharded", "unsharded"]]
    assert float(ratios[1]) == max(float(ratio.removeprefix("≈ ")) for ratio in ratios) > 10
    assert set(rows["cell"]) == {f"{n} GPUs, {precision}" for n in (2, 4) for precision in ("fp32", "bf16")}


def test_an_uneven_share_is_told(cpu):
    cell = {"contender": "sharded", "metric": "held", "part": "optimizer_state", "moment": "after_update"}
    table = doctor(cpu, "samples", "6 4", **cell)
    found = optimizer_state_sharding.answers({"optimizer_sharding": table})
    assert found["uneven"]["ours"] == pytest.approx(0.2)
    assert found["uneven"]["foreign"] == pytest.approx(0, abs=1e-4)


def test_closed_forms_are_told_whatever_was_measured(cpu):
    table = optimizer_state_sharding_accounting.schemes_table()
    # xl has 1.998 · 10^9 weights: 16 of them 29.8 GiB; an all-reduce over 2 sends 8.0 GB.
    assert [row[0] for row in table.rows] == ["data parallel", "sharded optimizer", "ZeRO-1", "ZeRO-2"]
    assert [row[2] for row in table.rows] == ["29.8", "22.3", "22.3", "18.6"]
    assert [row[5] for row in table.rows] == ["7.99", "12.0", "7.99", "7.99"]
    nothing = optimizer_state_sharding_accounting.answers({"optimizer_sharding": cpu.iloc[:0]})
    assert nothing["missing"] == "not measured: not run"


def typeset_sections(folder, table):
    """The text of the sections, typeset by themselves with empty figures."""
    for name in ("theme.typ", "references.bib"):
        (folder / name).write_bytes((ROOT / "report" / name).read_bytes())
    jinja = environment(ROOT / "report")
    text = ['#import "/theme.typ": *', "#show: report"]
    for name in NAMES:
        answers = importlib.import_module(f"scripts.answers.{name}").answers({"optimizer_sharding": table})
        rendered = jinja.get_template(f"sections/{name}.typ.j2").render(
            a=answers,
            summary={"machine": "a machine"},
            figure=lambda name: Typst(f'#figure([], kind: image, supplement: "Figure") <fig-{name}>'),
            reproduce=lambda name: "",
        )
        text += [f"== {name}", rendered]
    (folder / "text.typ").write_text("\n".join([*text, '#bibliography("/references.bib")']), encoding="utf-8")
    with contextlib.chdir(folder):
        typeset(folder / "text.typ", folder / "text.pdf")
    return pdf_text(folder / "text.pdf")


def test_sections_say_what_was_found_on_a_gpu(h200, tmp_path):
    slower = h200.copy()
    index = select(slower, contender="sharded_gradients", metric="step", **GPU_CELL).index
    for row in index:
        for column in ("median", "p20", "p80"):
            slower.loc[row, column] *= 2
        slower.loc[row, "samples"] = format_samples([2 * step for step in parse_samples(slower.loc[row, "samples"])])
    text = typeset_sections(tmp_path, slower)
    assert squeeze("Median training steps of xl over those of others") in text
    before, after = (
        next(row for row in steps_against(rows).rows if row[:2] == ["sharded, gradients too", "sharded"])
        for rows in (contenders(OptimizerSharding, table) for table in (h200, slower))
    )
    assert before[2:] != after[2:]
    assert float(after[3]) == pytest.approx(2 * float(before[3].removeprefix("≈ ")), abs=0.02)  # 2 GPUs, bf16
    assert squeeze(" ".join(after)) in text
    assert squeeze("(bytes: 1.50×)") in text
    assert squeeze("Our peaks are within 1.0 % of the closed form") in text
    assert "not_known" not in text
    assert "notmeasured" not in text


def test_sections_of_a_cpu_know_no_allocator(cpu, tmp_path):
    text = typeset_sections(tmp_path, cpu)
    assert squeeze("The allocator counts only on GPUs") in text
    assert squeeze("In the profiled steps") not in text
    assert "GPUs,fp32" not in text
    assert "2processes,fp32" in text


def test_a_lost_contender_and_a_lost_launch_have_their_reasons(h200, tmp_path):
    (index,) = select(h200, contender="zero_redundancy", metric="step", **GPU_CELL).index
    table = h200[(h200["contender"] != "zero_redundancy") | (h200.index == index)].copy()
    for column in ("mean", "std", "median", "p20", "p80"):
        table.loc[index, column] = None
    table.loc[index, "status"], table.loc[index, "message"] = "skipped", "each process needs 9 GB"
    folder = tmp_path / "one"
    folder.mkdir()
    assert squeeze("not measured: each process needs 9 GB") in typeset_sections(folder, table)
    lost = Measurement(metric=WHOLE_CELL, status="skipped", message="needs 2 GPUs")
    (tmp_path / "raw").mkdir()
    assert squeeze("were not measured: needs 2 GPUs") in typeset_sections(
        tmp_path, table_of(tmp_path / "raw", "handout", gpu=True, lost=lambda cell: lost)
    )


@pytest.mark.parametrize(("scale", "gpu"), [("handout", True), ("smoke", False)])
def test_pictures_are_drawn(tmp_path, scale, gpu):
    table_of(tmp_path, scale, gpu=gpu)
    for name in ("sharding_memory", "sharding_steps"):
        draw(name, {}, str(tmp_path / f"{name}.svg"), table=str(tmp_path / "table.csv"))
        assert (tmp_path / f"{name}.svg").read_text().count("<path") > 60
