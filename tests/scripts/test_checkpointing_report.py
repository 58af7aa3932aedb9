"""A block's memory and checkpointing: what is computed of them, and the self-checks of both, on recorded tables."""

import pytest

from scripts.answers.gradient_checkpointing import bests, segments
from scripts.answers.memory_profiling.block import block_cells, contributors
from scripts.views.data import frame, one_model, select
from scripts.views.strategies import strategies_table
from tests.samples import planned_rows


@pytest.fixture(scope="module")
def h200():
    return {name: frame(name, planned_rows(name, "handout")) for name in ("block_memory", "checkpointing")}


def where(table, **wanted):
    (index,) = select(table, **wanted).index
    return index


def number(table, metric, column="mean", **cell):
    return table.loc[where(table, metric=metric, **cell), column]


def test_the_best_segment_has_its_neighbours_and_its_price(h200):
    table = h200["checkpointing"].copy()
    # The shortest segments are best: have another length be.
    table.loc[where(table, metric="peak_memory", attention="flash", segment=4), "mean"] = 1000.0
    cases = bests(segments(one_model(table)))
    plain, flash = cases
    assert (plain["best"], plain["shorter"], plain["longer"]["segment"]) == (1, None, 2)
    assert plain["saving"] is plain["slowdown"] is None  # without checkpointing it runs out of memory
    assert (flash["best"], flash["row"]["peak"]) == (4, 1000 / 1024)
    assert [flash["shorter"]["segment"], flash["longer"]["segment"]] == [2, 8]
    assert flash["saving"] == number(table, "peak_memory", attention="flash", segment=0) / 1000
    steps = [number(table, "step", "median", attention="flash", segment=k) for k in (0, 4)]
    assert flash["slowdown"] == steps[1] / steps[0]


def test_the_strategies_are_counted():
    assert [row[3:6] for row in strategies_table(32, {}).rows] == [
        ["0", "32", "32"],
        ["5", "5", "64"],
        ["5", "1", "112"],
        ["1", "1", "528"],
    ]


def test_the_largest_contributors_come_first_with_their_share(h200):
    table = h200["block_memory"]
    cells = block_cells(table)
    rows = contributors(table, select(cells, context=2048)).rows
    # Scores of 4 sequences and 32 heads: fp32 from softmax, bf16 for the product.
    assert rows[0][:4] == ["attention", "softmax", "attention weights", "2048"]
    assert rows[0][5:8:2] == ["–", "2048"]
    (cast,) = [row for row in rows if row[2] == "attention weights, cast"]
    assert cast[7] == "1024"
    total = number(table, "saved_activations", context=2048, precision="bf16", attention="plain")
    assert rows[0][8].startswith(f"{100 * 2048 / total:.0f}")
    assert (cells["gradients"] == cells["expected"]).all()
