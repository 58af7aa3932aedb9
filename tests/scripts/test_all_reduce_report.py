"""The report's answers on all-reduces, on made-up tables."""

import pytest

from cs336_systems.record.measurement import summarize
from scripts.answers import distributed_communication_single_node as section
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


def test_a_wrong_sum_is_told(h200):
    (index,) = select(h200, metric="wrong_numbers", backend="nccl", processes=4, megabytes=100).index
    table = h200.copy()
    table.loc[index, "mean"] = summarize("wrong_numbers", "", [0.0, 250.0]).mean
    assert section.answers({"all_reduce": table})["exact"] is False
