"""What the report says of a block's memory and of checkpointing, and the self-checks of both, on made-up tables."""

import pandas
import pytest

from scripts.answers import gradient_checkpointing
from scripts.answers.memory_profiling.block import block_answers
from scripts.checks import block_memory, checkpointing
from scripts.tables import merge
from scripts.views.closed_forms import step_of
from scripts.views.data import load, select
from tests.samples import H200, planned_rows, write_raw

NAMES = ("block_memory", "checkpointing")


def load_tables(folder, scale, **origin):
    tables = {}
    for name in NAMES:
        raw = write_raw(folder, name, planned_rows(name, scale, **origin))
        merge(name, [str(raw)], str(folder / f"{name}.csv"), "nvidia-h200" if origin else "cpu")
        tables[name] = load(name, folder / f"{name}.csv")
    return tables


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    return load_tables(tmp_path_factory.mktemp("h200"), "handout", **H200)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    return load_tables(tmp_path_factory.mktemp("cpu"), "smoke")


@pytest.fixture
def nothing(h200):
    return {name: table.iloc[:0] for name, table in h200.items()}


def where(table, **wanted):
    (index,) = select(table, **wanted).index
    return index


def number(table, metric, column="mean", **cell):
    return table.loc[where(table, metric=metric, **cell), column]


def test_the_best_segment_is_quoted_with_its_neighbours_and_its_price(h200):
    table = h200["checkpointing"].copy()
    # Made-up peaks grow with the segment: have another length be the best.
    table.loc[where(table, metric="peak_memory", attention="flash", segment=4), "mean"] = 1000.0
    plain, flash = gradient_checkpointing.answers({**h200, "checkpointing": table})["results"]["cases"]
    assert (plain["attention"], plain["best"], plain["shorter"]) == ("plain", 1, None)
    assert plain["longer"] == (2, number(table, "peak_memory", attention="plain", segment=2))
    assert plain["out_of_memory"] == ["none", "32"]
    assert plain["saving"] is plain["cost"] is None
    assert (flash["best"], flash["peak"]) == (4, 1000)
    assert (flash["shorter"][0], flash["longer"][0]) == (2, 8)
    assert flash["saving"] == number(table, "peak_memory", attention="flash", segment=0) / 1000
    times = [number(table, "step", "median", attention="flash", segment=k) for k in (0, 1, 2, 4, 8, 16, 32)]
    assert flash["cost"] == (min(times[1:]) / times[0], max(times[1:]) / times[0])
    assert flash["slowdown"] == times[3] / times[0]


def test_measured_peaks_are_held_against_the_closed_form(h200):
    found = gradient_checkpointing.answers(h200)["results"]
    assert found["deviation"] == pytest.approx(0.01)  # as the samples are made
    assert found["phases"] == {"backward": 12}
    (row,) = [row for row in found["table"].rows if row[:2] == ["plain", "8"]]
    cell = select(h200["checkpointing"], metric="step", attention="plain", segment=8).iloc[0]
    assert row[4:6] == [f"{1.01 * step_of(cell).peak / 2**30:.1f}", f"{step_of(cell).peak / 2**30:.1f}"]
    (lost,) = [row for row in found["table"].rows if row[:2] == ["plain", "32"]]
    assert lost[2] == lost[-1] == "not measured: out of memory"
    assert float(lost[5]) > 150  # the closed form needs no measurement


def test_a_cpu_counts_no_peak_but_what_is_saved(cpu):
    found = gradient_checkpointing.answers(cpu)["results"]
    assert found["table"].columns[2:] == ["saved / MiB", "closed form / MiB", "step / ms", "against none"]
    assert [case["best"] for case in found["cases"]] == [None, None]
    assert found["deviation"] is found["rival"] is None
    assert gradient_checkpointing.tiles({"results": found}) == []


def test_nothing_measured_leaves_the_strategies(nothing):
    found = gradient_checkpointing.answers(nothing)
    assert found["results"] is None
    assert [row[3:6] for row in found["strategies"].rows] == [
        ["0", "32", "32"],
        ["5", "5", "64"],
        ["5", "1", "112"],
        ["1", "1", "528"],
    ]
    assert block_answers(nothing) == {"measured": False}


def test_the_largest_contributors_come_first_with_their_share(h200):
    found = block_answers(h200)
    table = found["contributors"]
    assert [title for title, _ in table.groups[1:]] == ["fp32, plain", "fp32, flash", "bf16, plain", "bf16, flash"]
    # Scores of 4 sequences and 32 heads: fp32 from softmax, bf16 for the product.
    assert table.rows[0][:5] == ["attention", "softmax", "attention weights", "1 of 4×32×2048×2048", "2048"]
    assert table.rows[0][6:9:2] == ["–", "2048"]
    (cast,) = [row for row in table.rows if row[2] == "attention weights, cast"]
    assert cast[3:9:2] == ["1 of 128×2048×2048", "–", "–"]
    assert cast[8] == "1024"
    total = number(h200["block_memory"], "saved_activations", context=2048, precision="bf16", attention="plain")
    assert table.rows[0][9].startswith(f"{100 * 2048 / total:.0f}")
    assert found["doubled"] == {
        "softmax": 2048,
        "product": 1024,
        "ratio": total
        / number(h200["block_memory"], "saved_activations", context=2048, precision="fp32", attention="plain"),
    }
    assert found["copies"] == ["attention.query", "attention.key", "attention.value"]


def test_scores_are_kept_once_where_autocast_softmax_is_in_bf16(cpu):
    found = block_answers(cpu)
    assert found["measured"]
    assert found["doubled"] is None
    assert "left by forward" not in found["totals"].columns


def test_a_tensor_that_the_closed_form_lacks_is_told(h200):
    table = h200["block_memory"].copy()
    row = where(
        table, metric="saved", context=2048, precision="fp32", attention="plain", operator="softmax", range="attention"
    )
    table.loc[row, "tensor"] = "float32 1×2"
    found = block_answers({"block_memory": table})
    assert not found["exact"]
    (line,) = [row for row in found["contributors"].rows if row[3] == "1 of 1×2"]
    assert line[2] == "not in the closed form"


BLOCK_CELL = {"context": 512, "precision": "bf16", "attention": "plain"}
STEP_CELL = {"attention": "flash", "segment": 4}
DOCTORED = {"block_memory": (block_memory, BLOCK_CELL), "checkpointing": (checkpointing, STEP_CELL)}


@pytest.mark.parametrize(
    ("check", "name", "cell", "column", "value", "complaint"),
    [
        ("saved_is_the_closed_form", "block_memory", {"metric": "saved", "operator": "silu"}, "mean", 1.0, "silu"),
        (
            "saved_is_the_closed_form",
            "block_memory",
            {"metric": "saved", "operator": "silu"},
            "tensor",
            "float16 3",
            "float16 3",
        ),
        ("saved_is_the_closed_form", "block_memory", {"metric": "saved_weight_copies"}, "mean", 1.0, "copies"),
        ("saved_is_the_closed_form", "block_memory", {"metric": "saved_activations"}, "mean", 1.0, "the sum"),
        ("gradients_are_the_closed_form", "block_memory", {"metric": "input_gradient"}, "mean", 1.0, "input_gradient"),
        ("allocator_agrees", "block_memory", {"metric": "left_by_forward"}, "mean", 1e3, "left_by_forward 1000.0 MiB"),
        ("allocator_agrees", "block_memory", {"metric": "left_by_backward"}, "mean", 1.0, "left_by_backward 1.0 MiB"),
        ("saved_is_the_closed_form", "checkpointing", {"metric": "saved_for_backward"}, "mean", 1.0, "1.000 MiB"),
        ("peak_is_the_closed_form", "checkpointing", {"metric": "peak_memory"}, "mean", 9e4, r"\+\d+.\d%"),
        ("blocks_run_again", "checkpointing", {"metric": "block_calls"}, "mean", 32.0, "32 calls of 32 blocks"),
        ("recomputation_takes_time", "checkpointing", {"metric": "step"}, "p20", 1.0, "1.00 ms against"),
        ("recomputation_takes_time", "checkpointing", {"metric": "step"}, "p20", 1e6, "1000000.00 ms against"),
    ],
)
def test_a_doctored_row_fails_its_check_and_is_named(h200, check, name, cell, column, value, complaint):
    module, where_it_is = DOCTORED[name]
    examine = getattr(module, check)
    table = h200[name].copy()
    assert examine(table).outcome == "passed"
    table.loc[where(table, **where_it_is, **cell), column] = value
    found = examine(table)
    assert found.outcome == "failed"
    assert pandas.Series([found.detail]).str.contains(complaint).all(), found.detail
    named = {"block_memory": "2.7B, context 512, bf16: ", "checkpointing": "our attention, segments of 4: "}[name]
    assert named in found.detail


def test_checks_of_nothing_and_of_a_cpu_do_not_fail(cpu, nothing):
    for tables in (cpu, nothing):
        found = [*block_memory.checks(tables), *checkpointing.checks(tables)]
        assert {check.outcome for check in found} <= {"passed", "not applicable"}, found
    assert (
        sum(check.outcome == "passed" for module in (block_memory, checkpointing) for check in module.checks(cpu)) == 4
    )
