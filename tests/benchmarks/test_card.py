"""The card's instruments on this machine's processor: rates, wrong results, and what a failure costs."""

import time
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

from cs336_systems.benchmarks import card
from cs336_systems.benchmarks.instruments import attention, matmul, measuring, memory
from cs336_systems.benchmarks.instruments.measuring import measure_work, works_of
from cs336_systems.benchmarks.instruments.work import Work, time_rates
from cs336_systems.benchmarks.instruments.worker import Worker
from cs336_systems.experiments.card import Card
from cs336_systems.measure.memory import Unavailable

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Works of milliseconds."""
    monkeypatch.setitem(matmul.SHAPES, "cpu", ((33, 17, 65), (65, 65, 65)))
    monkeypatch.setitem(memory.BYTES, "cpu", 2**16)
    monkeypatch.setitem(attention.SHAPES, "cpu", ((2, 3, 17, 8),))


def rates(instrument):
    rows = card.measure(Card(instrument=instrument, milliseconds=1), CPU)
    return {row.details["work"]: row for row in rows if row.metric in Card.metrics}


@pytest.mark.parametrize(
    ("instrument", "works"), [("matmul", 4), ("memory", 3), ("attention", 2), ("launches", 1), ("all_reduce", 1)]
)
def test_each_work_of_an_instrument_has_a_rate(instrument, works):
    measured = rates(instrument)
    assert len(measured) == works
    assert all(row.status == "ok" and row.n >= 5 and row.mean > 0 for row in measured.values()), measured


def test_transfers_need_a_device_of_their_own():
    assert {row.status for row in rates("transfers").values()} == {"skipped"}


@pytest.mark.parametrize("nap", [0.002, 0.02])
def test_a_rate_is_the_amount_over_the_time(nap):
    work = Work(name="nap", metric="rate", amount=3.0, build=lambda _: None)
    samples = time_rates(work, lambda: time.sleep(nap), CPU, 0.1, nullcontext())
    assert 0.5 * 3 / nap < max(samples) <= 3 / nap


def test_a_longer_work_has_more_samples():
    work = Work(name="nap", metric="rate", amount=1.0, build=lambda _: None, times=3)
    counts = [len(time_rates(work, lambda: time.sleep(0.011), CPU, seconds, nullcontext())) for seconds in (0.01, 0.1)]
    assert counts[0] == 5 < counts[1]


def test_wrong_results_are_counted(monkeypatch):
    def wrong(a, b):
        result = a @ b.T
        result[0, 0] += 1
        return lambda: result

    monkeypatch.setitem(matmul.PRECISIONS, "fp32", (torch.float32, wrong, 2.0**-16))
    (work,) = [work for work in works_of(Card(instrument="matmul"), CPU) if work.name == "fp32 33 x 17 x 65"]
    lost, count = measure_work(work, Card(instrument="matmul"), CPU)
    assert (lost.metric, lost.status) == ("rate", "failed")
    assert lost.message.startswith("1 of 2145 elements differ from float64")
    assert (count.metric, count.mean) == ("wrong_numbers", 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB"), "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "failed"),
        (TypeError("a library's own mistake"), "failed"),
        (Unavailable("the package is not installed"), "skipped"),
    ],
)
def test_a_work_that_fails_costs_only_its_line(monkeypatch, error, status):
    def fail(size, device):
        raise error

    monkeypatch.setattr(memory, "read", fail)
    measured = rates("memory")
    assert [row.status for row in measured.values()] == ["ok", status, "ok"]
    assert measured["read"].message == str(error)


def test_one_gpu_has_no_pair(monkeypatch):
    monkeypatch.setitem(measuring.INSTRUMENTS, "all_reduce", lambda device: [])
    with pytest.raises(Unavailable, match="at least two GPUs"):
        card.measure(Card(instrument="all_reduce"), CPU)


def test_facts_of_a_processor_are_known_or_have_a_reason():
    rows = card.measure(Card(instrument="facts"), CPU)
    assert {row.details["about"] for row in rows} >= {"idle_utilization", "governor", "logical_cores"}
    assert all(row.value or row.message for row in rows)


@pytest.mark.slow
def test_a_process_that_dies_costs_one_work_at_most_and_another_takes_its_place():
    worker = Worker()
    rows = []
    for row in worker.measure(Card(instrument="attention", milliseconds=1), CPU):
        rows.append(row)
        if len(rows) == 1:
            worker._process.kill()
    works = [row.details["work"] for row in rows]
    assert works == [work.name for work in works_of_unpatched()]
    assert all(one != other for one, other in pairwise(works))
    lost = [row for row in rows if row.status != "ok"]
    assert len(lost) <= 1
    assert all("SIGKILL" in row.message for row in lost)
    worker.end()


def works_of_unpatched():
    """The workloads of another process, where nothing is patched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attention.SHAPES, "cpu", ((1, 4, 128, 32), (1, 4, 256, 64), (1, 4, 512, 64)))
        return works_of(Card(instrument="attention"), CPU)


@pytest.mark.slow
def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("cs336_systems.benchmarks.instruments.worker.TIMEOUT_S", 0.2)
    worker = Worker()
    (row,) = worker.measure(Card(instrument="launches", milliseconds=1), CPU)
    assert (row.status, row.message) == ("failed", "it took longer than 0.2 s")
    assert row.details["about"] == "launches"
    assert worker._process is None
