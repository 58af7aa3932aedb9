"""The memory profile's self-checks, answers and figures on made-up measurements."""

import re

import numpy
import pytest

from cs336_systems.accounting.transformer import parameters
from cs336_systems.accounting.units import MIB
from cs336_systems.measure.measurement import WHOLE_CELL
from cs336_systems.sizes import parse_size
from scripts.answers import memory_profiling
from scripts.checks import memory_profile
from scripts.figures.memory_timelines import stage_levels
from scripts.rendering.markup import Typst
from scripts.views.data import load, one, select
from scripts.views.memory import SHOWN, compared_context, profiled
from scripts.views.units import GIB
from scripts.writeup import environment
from tests.samples import H200, ROOT, planned_rows, write_raw


def load_tables(folder, scale, **origin):
    """The tables that the section needs, of made-up measurements."""
    names = ("memory_profile", "block_memory", "end_to_end")
    return {name: load(name, write_raw(folder, name, planned_rows(name, scale, **origin))) for name in names}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Tables of the handout's grids on an H200. Not to be changed."""
    return load_tables(tmp_path_factory.mktemp("h200"), "handout", **H200)


@pytest.fixture
def table(sound):
    """The profile, to be doctored."""
    return sound["memory_profile"].copy()


CELL = {"context": 256, "precision": "bf16", "attention": "plain", "mode": "train_step"}


def doctor(table, value, **wanted):
    """Put another mean into the one row of the cell that has these values."""
    table.loc[one(table, **CELL, **wanted).name, "mean"] = value


@pytest.mark.parametrize(
    ("check", "row", "value", "complaint"),
    [
        (
            memory_profile.replay_is_exact,
            {"metric": "peak_replayed"},
            1.0,
            "2.7B, context 256, bf16, training step: .* B, replayed 1 B",
        ),
        (memory_profile.replay_is_exact, {"metric": "at_peak", "category": "temporaries"}, 0.0, "parts "),
        (
            memory_profile.state_is_what_the_shape_says,
            {"metric": "most", "category": "gradients"},
            13_627_238_404.0,
            "gradients 13627238404 B, expected 13627238400 B",
        ),
        (
            memory_profile.state_is_what_the_shape_says,
            {"metric": "most", "category": "bf16 copies of weights"},
            0.0,
            "bf16 copies of weights 0 B",
        ),
        (
            memory_profile.residual_stream_is_found,
            {"metric": "residual_tensors", "source": "cs336_systems/model.py:154 forward"},
            31.0,
            "63 of 64 additions make 10485760 B",
        ),
        (memory_profile.peaks_agree, {"metric": "peak_allocated"}, 50_000.0 * MIB, "training step: 50000 MiB against "),
    ],
)
def test_a_doctored_row_fails_its_check_and_is_named(sound, table, check, row, value, complaint):
    arguments = [sound["end_to_end"]] if check is memory_profile.peaks_agree else []
    assert check(table, *arguments).outcome == "passed"
    doctor(table, value, **row)
    found = check(table, *arguments)
    assert found.outcome == "failed"
    assert re.search(complaint, found.detail), found.detail


def test_much_unclassified_memory_fails_its_check(table):
    category = one(table, **CELL, metric="at_peak", category="allocator's rounding").name
    table.loc[category, "category"] = "unclassified"
    peak = one(table, **CELL, metric="peak_allocated")["mean"]
    table.loc[category, "mean"] = 0.019 * peak
    assert memory_profile.memory_is_classified(table).outcome == "passed"
    table.loc[category, "mean"] = 0.021 * peak
    found = memory_profile.memory_is_classified(table)
    assert (found.outcome, found.detail) == ("failed", "2.7B, context 256, bf16, training step: 2.1%")


def test_another_model_need_not_have_the_closed_forms(table):
    doctor(table, 1.0, metric="most", category="gradients")
    table["model"] = "my.model:LM"
    assert memory_profile.state_is_what_the_shape_says(table).outcome == "not applicable"
    assert memory_profile.residual_stream_is_found(table).outcome == "not applicable"


def test_what_was_timed_under_other_settings_is_not_compared(sound, table):
    timed = sound["end_to_end"]
    assert memory_profile.peaks_agree(table, timed.assign(batch_size=8)).outcome == "not applicable"
    compiled = timed.assign(compiled=True)
    assert memory_profile.peaks_agree(table, compiled).outcome == "not applicable"


def test_answers_quote_the_measurements(sound, table):
    doctor(table, 48.125 * GIB, metric="peak_allocated")
    found = memory_profiling.answers(sound | {"memory_profile": table})
    assert found["context"] == 512
    (row,) = [row for row in found["bf16_peaks"].rows if row[0] == "256"]
    fp32 = one(table, **(CELL | {"precision": "fp32"}), metric="peak_allocated")["mean"] / GIB
    assert row[5:] == ["48.1", f"{48.125 - fp32:+.2f}".replace("-", "−")]
    assert ("training step at 256" in found["bf16_saves"]) == (fp32 > 48.125)
    assert dict(found["residual"]) == {128: 5, 256: 10, 512: 20, 2048: 80}
    weights = f"{4 * parameters(parse_size('2.7B'), 10_000) / MIB:.1f}"
    assert found["derived"].rows[0][2:] == [weights, weights]
    assert found["found"]["total"] == 65
    assert found["found"]["added"] == 64
    assert found["largest"].rows[0] == [
        "bmm", "attention/plain.py:27", "q @ k", "temporaries", "128.0", "1 × 32", "0.50",
    ]  # fmt: skip


def test_cells_out_of_memory_say_so(sound):
    found = memory_profiling.answers(sound)
    last = found["peaks"].rows[-1]
    assert last[0] == "2048"
    assert last[-1] == "not measured: out of memory"
    assert found["out_of_memory"] == ["forward, with graph at context 2048", "training step at context 2048"]


def test_a_cpu_gets_the_answers_that_need_no_measurement(tmp_path):
    tables = load_tables(tmp_path, "smoke")
    found = memory_profiling.answers(tables)
    assert found["context"] is None
    assert found["why_not"] == "needs a CUDA device"
    assert found["derived"].columns[-1] == "derived / MiB"
    assert found["derived"].rows[0][2] == f"{4 * parameters(parse_size('micro'), 10_000) / MIB:.1f}"
    assert found["residual"] == [(64, 4 * 64 * 128 * 4 / MIB), (128, 4 * 128 * 128 * 4 / MIB)]


def section(tables):
    """The section's Typst source."""
    return (
        environment(ROOT / "report")
        .get_template("sections/memory_profiling.typ.j2")
        .render(
            a=memory_profiling.answers(tables),
            summary={"machine": "NVIDIA H200", "gpu": "NVIDIA H200"},
            figure=lambda name: Typst(f"figure {name}"),
            reproduce=lambda experiment: Typst(f"command {experiment}"),
        )
    )


def test_the_words_follow_the_numbers(sound, table):
    text = section(sound)
    assert (
        '#"forward, with graph at context 2048"; and #"training step at context 2048"; run#""; out of memory.' in text
    )
    assert "the total is higher at the end of the backward pass" not in text  # the sample's stages end alike
    assert "in each of the 21 cells the replayed peak is the one" in text
    doctor(table, 1.0, metric="peak_replayed")
    grown = {"metric": "stage_end", "stage": "backward", "category": "gradients"}
    cell = {"context": 512, "precision": "fp32", "attention": "plain", "mode": "train_step"}
    table.loc[one(table, **cell, **grown).name, "mean"] *= 2
    table = table[(table["mode"] != "forward") | (table["metric"] != "cell")]
    text = section(sound | {"memory_profile": table})
    assert '#"training step at context 2048"; run#"s"; out of memory.' in text
    assert "the total is higher at the end of the backward pass" in text


def test_nothing_is_said_of_a_machine_without_measurements(sound):
    empty = {name: rows.iloc[:0] for name, rows in sound.items()}
    assert "Not measured on this machine." in section(empty)
    some = select(sound["memory_profile"], precision="fp32")
    text = section(sound | {"memory_profile": some})
    assert "not measured in both precisions for every kind of step" in text
    assert "figure memory" not in text
    assert "#part[(d)" in text
    table = memory_profiling.answers(sound | {"memory_profile": some})["derived"]
    assert [row[3] == "–" for row in table.rows] == [False, False, False, True]  # no copies without autocast


def test_the_compared_context_has_every_kind_of_step(table):
    rows = select(profiled(table), attention="plain")
    assert compared_context(rows) == 512
    lost = (rows["context"] == 512) & (rows["mode"] == "forward") & (rows["precision"] == "fp32")
    rows = rows[~lost | (rows["metric"] == WHOLE_CELL)]
    assert compared_context(rows) == 256
    assert compared_context(select(rows, precision="bf16")) is None


def test_a_figures_levels_are_the_kept_points_with_small_categories_in_one(table):
    rows = select(table, **CELL, metric="active", stage="forward")
    levels = stage_levels(rows, SHOWN)
    assert levels.shape == (len(SHOWN), 8)
    peak = one(table, **CELL, metric="peak_allocated")["mean"] / GIB
    assert levels.sum(axis=0) == pytest.approx(peak * numpy.arange(1, 9) / 8, rel=1e-3)
    other = select(table, **CELL, metric="at_peak")
    small = other[~other["category"].isin(SHOWN)]["mean"].sum() / GIB
    assert levels[-1][-1] == pytest.approx(small, rel=1e-3)
    assert stage_levels(select(table, **CELL, metric="active", stage="optimizer"), SHOWN).shape == (len(SHOWN), 2)
