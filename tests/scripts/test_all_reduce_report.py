"""The report's answers on all-reduces."""

import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from scripts.answers import distributed_communication_single_node as section
from scripts.rendering.grid import grid
from scripts.views.communication import all_reduce_table, lines
from scripts.views.data import frame
from tests.samples import planned_rows
from tests.support.faults import put, rows
from tests.support.tables import GPU, table

SECONDS, BANDWIDTH = 30e-6, 300e9
"""Of the all-reduces on a known line, and bytes/s."""


def test_the_lines_are_those_that_the_times_were_made_of():
    seconds = {
        AllReduce(backend="nccl", megabytes=size): SECONDS + 1e6 * size / BANDWIDTH for size in (1, 10, 100, 1000)
    }
    known = {cell: {"time": 1e3 * time, "bus_bandwidth": 1.0} for cell, time in seconds.items()}
    found = lines(all_reduce_table(table("all_reduce", GPU, known)))
    assert list(found) == [("nccl", 2)]
    assert found["nccl", 2].overhead == pytest.approx(SECONDS)
    assert found["nccl", 2].bandwidth == pytest.approx(BANDWIDTH)
    # By hand: 30 µs, 300 GB/s, and 9 MB that take as long as the overhead; no time is off the line.
    assert grid(section.fits_of(found), section.FITS).rows == [["NCCL", "2", "30.0", "300", "9.0", "0.0"]]


def test_backends_and_numbers_of_processes_have_a_line_each():
    found = lines(all_reduce_table(frame("all_reduce", planned_rows("all_reduce", "handout"))))
    assert list(found) == [("nccl", 2), ("nccl", 4), *(("gloo", n) for n in (2, 4, 6))]


def test_a_wrong_sum_is_told():
    tables = {"all_reduce": frame("all_reduce", planned_rows("all_reduce", "handout"))}
    assert section.answers(tables)["exact"] is True
    wrong = put(rows("all_reduce", metric="wrong_numbers", backend="nccl", processes=4, megabytes=100), mean=125.0)
    assert section.answers(wrong(tables))["exact"] is False
