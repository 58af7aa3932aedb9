"""Sentences of the title page and of the last pages: when, where and with which code, what is lost, what failed."""

import dataclasses

import pandas
import pytest
from pandas import DataFrame

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.record import make_row
from cs336_systems.plan import make_plan
from scripts.coverage import OUTCOMES, UNPLANNED
from scripts.rendering.headlines import Reference
from scripts.rendering.markup import Tile, Typst
from scripts.rendering.summary import summarize
from scripts.views.data import frame
from tests.prose import CPU, GPU, filled, step, table
from tests.samples import OOM, config, provenance

UNLISTED = provenance(gpu="NVIDIA Unknown", gpu_count=1)
DAYS = "2026-01-02T03:04:05+00:00", "2026-01-04T03:04:05+00:00"


PLAN = dataclasses.replace(make_plan(config(machine="cpu")), jobs={name: {} for name in EXPERIMENTS})
"""A plan without any jobs."""
CHECKS = ["check", "outcome", "detail"]


def measured(*origins):
    """Training steps, one from each origin."""
    cells = zip(("nano", "micro"), origins, strict=False)
    tables = [table("end_to_end", origin, {EndToEnd(size=size): step(1.0, 1.0, 1.0)}) for size, origin in cells]
    return pandas.concat(tables, ignore_index=True)


def pages(*origins, outcomes=(), counts=None, lost=(), tiles=(), reference=None, digests=None, **planned):
    """The pages around the sections: of a step from each origin, or of lost rows.

    Args:
        origins: where steps come from.
        outcomes: of the self-checks.
        counts: of cells, by what became of them.
        lost: rows without a number.
        tiles: of the title page.
        reference: what stands beside these.
        digests: of the present code, by experiment.
        planned: what the plan has.
    """
    tables = {name: frame(name, lost if name == "end_to_end" else []) for name in EXPERIMENTS}
    if origins:
        tables["end_to_end"] = measured(*origins)
    cells = {"experiment": "end_to_end", "grid": "g", "planned": 3} | dict.fromkeys([*OUTCOMES, UNPLANNED], 0)
    checks = DataFrame([{"check": "c", "outcome": outcome, "detail": ""} for outcome in outcomes], columns=CHECKS)
    covered = DataFrame([cells | (counts or {})])
    return filled(
        "writeup",
        summary=summarize(tables, dataclasses.replace(PLAN, **planned), covered, checks, digests or {}),
        parts={},
        sections={},
        tiles=tiles,
        reference=reference or Reference(),
    )


@pytest.mark.parametrize(
    ("origins", "planned", "sentence"),
    [
        ([GPU], {}, "Measured on this machine: NVIDIA H200, 2026-01-02, commit 0123abc. 0 of 3"),
        (
            [dataclasses.replace(GPU, utc=DAYS[1], git_commit="fedcba9876"), GPU],
            {},
            ": NVIDIA H200, 2026-01-02 to 2026-01-04, commits 0123abc and fedcba9 (see @versions). 0 of 3",
        ),
        (
            [GPU],
            {"recorded": True, "machine": "nvidia-h200"},
            "Recorded results of nvidia-h200, measured 2026-01-02 at commit 0123abc; nothing was measured for this rep",
        ),
    ],
)
def test_when_and_with_which_code(origins, planned, sentence):
    text = pages(*origins, **planned)
    assert sentence in text
    assert ("The measurements come from 2 commits" in text) == (len(origins) > 1)


def test_nothing_was_measured():
    text = pages()
    assert "Measured on" not in text
    assert "Recorded results" not in text
    assert "random weights and random tokens. Times are" in text


@pytest.mark.parametrize(("dirty", "told"), [(True, 2), (False, 0), (None, 0)])
def test_code_that_was_not_committed(dirty, told):
    text = pages(dataclasses.replace(GPU, git_dirty=dirty))
    assert text.count("Some measurements were made with uncommitted changes to the code.") == told


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"ok": 2}, "2 of 3 planned cells measured at the smoke scale (@coverage);"),
        ({"ok": 2, "oom": 1}, "2 of 3 planned cells measured at the smoke scale, 1 ran out of memory (@coverage);"),
    ],
)
def test_how_much_was_measured(counts, sentence):
    text = pages(counts=counts, scale="smoke")
    assert sentence in text
    assert "The smoke scale runs every experiment on small models" in text
    assert "The smoke scale runs" not in pages(counts=counts, scale="handout")
    assert "does not plan were measured too" not in text
    assert "were measured too (unplanned: 4); nothing else" in pages(counts=counts | {UNPLANNED: 4})


@pytest.mark.parametrize(
    ("outcomes", "passed", "failed"),
    [
        (["passed", "not applicable"], "1 of 1 applicable self-checks passed.", None),
        (["passed", "failed"], "1 of 2 applicable self-checks passed.", "[1 self-check failed: see @checks.]"),
        (["failed", "failed"], "0 of 2 applicable self-checks passed.", "[2 self-checks failed: see @checks.]"),
    ],
)
def test_how_many_checks_failed(outcomes, passed, failed):
    text = pages(outcomes=outcomes)
    assert passed in text
    assert (failed or "") in text
    assert ("failed: see @checks" in text) == bool(failed)


def test_figures_beside_those_of_the_recorded_machine():
    tiles = [Tile(Typst("2.00×"), "as fast", "gain"), Tile(Typst("3 ms"), "long")]
    beside = Reference("NVIDIA H200", {"gain": Typst("4.00×")})
    text = pages(tiles=tiles, reference=beside)
    assert "tile([2.00×], [as fast], beside: [H200: 4.00×]), tile([3 ms], [long])," in text
    assert "Beside a figure: what was recorded on NVIDIA H200, over the cells that were measured on both." in text
    text = pages(tiles=tiles)
    assert "tile([2.00×], [as fast]), tile([3 ms], [long])," in text
    assert "Beside a figure" not in text


@pytest.mark.parametrize(
    ("origin", "tf32", "peak"),
    [
        (
            GPU,
            True,
            "dense peak of NVIDIA H200: 989 TFLOP/s in bf16, 67.0 TFLOP/s in fp32 (NVIDIA H200 data sheet, SXM).",
        ),
        (UNLISTED, True, "_NVIDIA Unknown is not listed: utilization, and the self-checks that need its peak rates"),
        (CPU, False, ""),
    ],
)
def test_how_it_was_measured(origin, tf32, peak):
    text = pages(origin).replace("~", " ")
    assert "random tokens, batch 4, vocabulary 10\u202f000. Times".replace("\u202f", " ") in text
    assert ("_fp32_ has TF32 off, _bf16_ is autocast" in text) == tf32
    assert peak in text
    assert ("Utilization (MFU" in text) == (origin == GPU)
    assert ("is not listed" in text) == (origin == UNLISTED)


def test_code_that_has_changed_since():
    same, other = {"end_to_end": [GPU.source_digest]}, {"end_to_end": ["fedcba987654"]}
    told = "_The code that measures end_to_end has changed since some of these rows were measured"
    assert told in pages(GPU, digests=other)
    assert told not in pages(GPU, digests=same)


def test_why_cells_have_no_number():
    text = pages(lost=[make_row(EndToEnd(size="nano"), OOM, GPU)])
    assert "Why cells, or single metrics of a cell, have no number." in text
    assert "Why cells, or single metrics" not in pages()
