"""The last chapter: one step through the whole report, from whatever was measured of it."""

import contextlib

import pytest

from cs336_systems.measure.measurement import WHOLE_CELL, Measurement
from scripts.answers import conclusion
from scripts.rendering.markup import Typst
from scripts.tables import merge
from scripts.views.data import load, select
from scripts.writeup import environment, typeset
from tests.samples import H200, ROOT, pdf_text, planned_cells, provenance, rows_of, squeeze, write_raw

NAMES = ("end_to_end", "kernel_profile", "data_parallel", "optimizer_sharding")


def load_rows(folder, name, cells, lost=lambda cell: None):
    raw = write_raw(folder, name, rows_of(cells, provenance(**H200), lost))
    merge(name, [str(raw)], str(folder / f"{name}.csv"), "nvidia-h200")
    return load(name, folder / f"{name}.csv")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """What the handout plans for xl at context 512. Not to be changed."""
    folder = tmp_path_factory.mktemp("h200")
    return {
        name: load_rows(
            folder, name, [cell for cell in planned_cells(name, "handout") if (cell.size, cell.context) == ("xl", 512)]
        )
        for name in NAMES
    }


def text_of(folder, tables):
    (folder / "theme.typ").write_bytes((ROOT / "report" / "theme.typ").read_bytes())
    answers = conclusion.answers(tables)
    template = environment(ROOT / "report").get_template("sections/conclusion.typ.j2")
    section = template.render(a=answers, summary={"machine": "a machine", "peak": None})
    (folder / "text.typ").write_text(Typst(f'#import "/theme.typ": *\n#show: report\n{section}'), encoding="utf-8")
    with contextlib.chdir(folder):
        typeset(folder / "text.typ", folder / "text.pdf")
    return pdf_text(folder / "text.pdf")


def test_a_row_follows_from_its_step(tables, tmp_path):
    answers = conclusion.answers(tables)
    assert not answers["left_out"]
    rows = {row[0]: row for row in answers["steps"].rows[:5]}
    step = select(tables["end_to_end"], metric="step", precision="fp32", mode="train_step")["median"].item()
    _, median, _, n, tokens, ratio, mfu, peak = rows["fp32"]
    # 2 FLOPs per weight and token forward, and attention's 4 · 512 · 1600 per token and block; thrice that.
    products = 48 * 40_960_000 + 10_000 * 1600
    flops = 3 * 2048 * (2 * products + 48 * 4 * 512 * 1600)
    assert (median, n, ratio) == (f"{step:.1f}", "10", "1.00")
    assert float(tokens) == pytest.approx(4 * 512 / step * 1e3, rel=1e-3)
    assert float(mfu) == pytest.approx(100 * flops / (step / 1e3) / 67e12, abs=0.05)
    assert float(peak) > 29  # weights, gradients and moments
    assert rows["bf16, compiled"][7] == "–"
    last = answers["steps"].rows[-1]
    step = select(
        tables["optimizer_sharding"], metric="step", precision="fp32", processes=4, contender="sharded_gradients"
    )
    assert float(last[4]) == pytest.approx(4 * 4 * 512 / step["median"].item() * 1e3, rel=1e-3)
    assert answers["fastest"]["processes"] == 4
    assert squeeze("Most tokens per second") in text_of(tmp_path, tables)


def test_memory_outside_of_the_allocator_counts(tables):
    steps = conclusion.settings()
    peer = next(setting for setting in steps if "peer memory" in setting.title)
    rows = select(conclusion.rows_of(tables["data_parallel"], peer), bucket_mb="100")
    inside, outside = (select(rows, metric=name)["mean"].item() for name in ("peak_memory", "outside_memory"))
    assert outside > 1000
    found = conclusion.numbers(peer, select(rows, metric="step").iloc[0], rows)
    assert found["memory"] == pytest.approx(inside + outside)


def test_what_is_missing_is_left_out_with_its_reason(tables, tmp_path):
    lost = Measurement(metric=WHOLE_CELL, status="skipped", message="needs 4 GPUs")
    cells = [cell for cell in planned_cells("data_parallel", "handout") if (cell.size, cell.context) == ("xl", 512)]
    some = load_rows(tmp_path, "data_parallel", cells, lambda cell: lost if cell.processes == 4 else None)
    changed = tables | {"data_parallel": some, "optimizer_sharding": tables["optimizer_sharding"].iloc[:0]}
    left_out = conclusion.answers(changed)["left_out"]
    assert {reason: len(names) for reason, names in left_out.items()} == {"needs 4 GPUs": 3, "not run": 6}
    text = text_of(tmp_path, changed)
    assert squeeze("they were not measured (needs 4 GPUs): bf16, compiled, naive data parallel on 4") in text
    empty = {name: table.iloc[:0] for name, table in tables.items()}
    folder = tmp_path / "nothing"
    folder.mkdir()
    assert squeeze("none is in these measurements: not measured") in text_of(folder, empty)
