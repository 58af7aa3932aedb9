"""What the report says of all-reduces, and their self-checks, on made-up and on doctored tables."""

import pytest

from cs336_systems.measure.gpus import listed
from cs336_systems.measure.measurement import summarize
from scripts.answers import distributed_communication_single_node as section
from scripts.checks import all_reduce
from scripts.rendering.grid import grid
from scripts.tables import merge
from scripts.views.communication import all_reduce_table, lines
from scripts.views.data import load, select
from tests.samples import H200, planned_rows, write_raw
from tests.samples.all_reduce import OVERHEAD_MS


def load_table(folder, scale, **origin):
    raw = write_raw(folder, "all_reduce", planned_rows("all_reduce", scale, **origin))
    merge("all_reduce", [str(raw)], str(folder / "table.csv"), "nvidia-h200" if origin else "cpu")
    return load("all_reduce", folder / "table.csv")


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The table of the handout's grid on H200s. Not to be changed."""
    return load_table(tmp_path_factory.mktemp("h200"), "handout", **H200)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """The table of the smoke grid on a CPU. Not to be changed."""
    return load_table(tmp_path_factory.mktemp("cpu"), "smoke")


def doctored(table, metric, *, backend, processes, megabytes, **changes):
    """The table with other statistics of one row."""
    (index,) = select(table, metric=metric, backend=backend, processes=processes, megabytes=megabytes).index
    table = table.copy()
    for column, value in changes.items():
        table.loc[index, column] = value
    return table


def outcomes(table):
    return {check.check: (check.outcome, check.detail) for check in all_reduce.checks({"all_reduce": table})}


def outcome(table, words):
    (found,) = [result for check, result in outcomes(table).items() if words in check]
    return found


def test_the_lines_are_those_that_the_times_were_made_of(h200):
    found = lines(all_reduce_table(h200))
    assert list(found) == [(backend, n) for backend in ("nccl", "gloo") for n in (2, 4, 6)]
    for (backend, n), line in found.items():
        assert line.overhead == pytest.approx(n / 2 * OVERHEAD_MS[backend] / 1e3, rel=0.05)
        rate = {"nccl": 340e9, "gloo": 2e9 * 2 / n}[backend]
        assert line.bandwidth == pytest.approx(rate * n / (2 * (n - 1)), rel=0.01)
    rows = grid(section.fits_of(found), section.FITS).rows
    assert [row[:2] for row in rows] == [["NCCL", "2"], ["NCCL", "4"], ["NCCL", "6"], *(["Gloo", n] for n in "246")]
    assert float(rows[0][2]) == pytest.approx(30, rel=0.05)  # µs
    assert float(rows[0][3]) == pytest.approx(340, rel=0.01)  # GB/s
    assert float(rows[0][4]) == pytest.approx(30e-6 * 340e9 / 1e6, rel=0.1)  # MB


def test_sound_tables_pass(h200, cpu):
    assert {found for found, _ in outcomes(h200).values()} == {"passed"}
    assert [found for found, _ in outcomes(cpu).values()] == ["passed", "passed", "not applicable"]


def test_a_wrong_sum_fails(h200):
    wrong = summarize("wrong_numbers", "", [0.0, 250.0])
    cell = {"backend": "nccl", "processes": 4, "megabytes": 100}
    table = doctored(h200, "wrong_numbers", **cell, mean=wrong.mean, p80=wrong.p80)
    assert outcome(table, "sum was right") == ("failed", "NCCL, 4 processes, 100 MB: up to 200 wrong")
    assert section.answers({"all_reduce": table})["exact"] is False


def test_a_larger_message_that_is_faster_fails(h200):
    table = doctored(h200, "time", backend="gloo", processes=2, megabytes=100, p80=5.0)
    found, detail = outcome(table, "larger message")
    assert found == "failed"
    assert "Gloo, 2 processes, 10 MB" in detail


@pytest.mark.parametrize(
    ("processes", "gigabytes", "expected"),
    [(2, 449.0, "passed"), (2, 451.0, "failed"), (4, 530.0, "passed"), (4, 541.0, "failed")],
)
def test_no_link_carries_more_than_it_can(h200, processes, gigabytes, expected):
    assert listed("NVIDIA H200").link == 450e9
    table = doctored(h200, "bus_bandwidth", backend="nccl", processes=processes, megabytes=1000, median=gigabytes)
    assert outcome(table, "data sheet's link")[0] == expected
