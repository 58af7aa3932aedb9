"""Sentences on data parallelism: all-reduces, and gradients sent one by one or together."""

import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.answers import (
    distributed_communication_single_node,
    minimal_ddp_flat_benchmarking,
)
from tests.prose import CPU, GPU, contest, prose, table


def flattened(naive, flat):
    """Text on both wrappers between 2 and 4 processes: each one's communication, ms, and peak, GiB, in either cell."""
    cells = {}
    for processes, *both in zip((2, 4), naive, flat, strict=True):
        cells[DataParallelTraining(size="nano", processes=processes, steps=2, rounds=1)] = [
            ({"wrapper": wrapper}, {"step": [100.0 + ms] * 2, "synchronization": ms, "peak_memory": 1024 * gib})
            for wrapper, (ms, gib) in zip(("none", "naive", "flat"), ((0.0, 1.0), *both), strict=True)
        ]
    answers = minimal_ddp_flat_benchmarking.answers({"data_parallel": contest("data_parallel", GPU, cells)})
    return prose("minimal_ddp_flat_benchmarking", answers, GPU)


@pytest.mark.parametrize(
    ("flat", "time", "memory"),
    [
        # One by one 20 and 40 ms, with peaks of 1 and 2 GiB.
        (
            [(15.0, 1.5), (30.0, 3.0)],
            "takes 5.00 ms to 10.0 ms less, the copy included.",
            ": 0.500 GiB to 1.00 GiB more",
        ),
        ([(25.0, 0.5), (30.0, 3.0)], "takes up to 10.0 ms less (", ": up to 1.00 GiB more at the peak ("),
        ([(25.0, 1.0), (50.0, 2.0)], "takes 5.00 ms to 10.0 ms more, the copy included.", ""),
    ],
)
def test_one_all_reduce_in_place_of_many(flat, time, memory):
    text = flattened([(20.0, 1.0), (40.0, 2.0)], flat)
    assert time in text
    assert memory in text
    assert ("The flat tensor costs memory" in text) == bool(memory)


@pytest.mark.parametrize(("messages", "calls"), [(1.0, "makes 1 call in place"), (2.0, "makes 2 calls in place")])
def test_how_many_calls_the_flat_wrapper_makes(messages, calls):
    cell = DataParallelTraining(size="nano", steps=2, rounds=1)
    found = [({"wrapper": "flat"}, {"step": [100.0] * 2, "messages": messages})]
    tables = {"data_parallel": contest("data_parallel", GPU, {cell: found})}
    assert calls in prose("minimal_ddp_flat_benchmarking", minimal_ddp_flat_benchmarking.answers(tables), GPU)


def reduced(times, origin, wrong=0.0):
    """Text on all-reduces: ms by backend, processes and MB, one sample or a list."""
    cells = {
        AllReduce(backend=backend, processes=processes, megabytes=megabytes): {"time": ms, "wrong_numbers": wrong}
        for (backend, processes, megabytes), ms in times.items()
    }
    answers = distributed_communication_single_node.answers({"all_reduce": table("all_reduce", origin, cells)})
    return prose("distributed_communication_single_node", answers, origin)


@pytest.mark.parametrize(
    ("largest", "sentence"),
    [
        # 1 ms a call and 1 ms for each MB; off that line at the largest size.
        (101.0, "The line meets the medians well: the largest residual is "),
        (160.0, "The line meets the medians roughly: the largest residual is "),
        (1000.0, "The line meets the medians badly: the largest residual is "),
    ],
)
def test_how_well_a_line_meets_its_points(largest, sentence):
    text = reduced({("gloo", 2, 1): 2.0, ("gloo", 2, 10): 11.0, ("gloo", 2, 100): largest}, CPU)
    assert sentence in text
    assert ("A library may choose its algorithm by size" in text) == (largest > 101)


def test_percentiles_far_apart_and_two_backends():
    # The middle three fifths of 1, 1, 1, 2 and 2 ms reach from 1 to 2.
    text = reduced({("gloo", 2, 1): [1.0, 1.0, 1.0, 2.0, 2.0], ("nccl", 2, 1): 0.5}, GPU)
    assert "The percentiles are more than 5.0 % of the median apart in 1 of 2 cells." in text
    assert "Gloo takes 2.00× (1 MB between 2 processes) as long as NCCL." in text
    text = reduced({("gloo", 2, 1): 1.0, ("nccl", 2, 1): 0.5, ("gloo", 2, 10): 6.0, ("nccl", 2, 10): 1.0}, GPU)
    assert "Gloo takes 2.00× (1 MB between 2 processes) to 6.00× (10 MB between 2 processes) as long as NCCL." in text
    assert "The percentiles are" not in text


@pytest.mark.parametrize(
    ("wrong", "sentence"), [(0.0, "(all were right, on every rank)"), (2.0, "(*not all were right*: see @checks)")]
)
def test_whether_sums_were_right(wrong, sentence):
    assert sentence in reduced({("gloo", 2, 1): 1.0}, CPU, wrong)


@pytest.mark.parametrize(
    ("small", "told"),
    [
        # Of 2 ms at 1 MB a call's overhead is 1 ms; of 1.1 ms it is 0.1.
        (2.0, True),
        (1.1, False),
    ],
)
def test_whether_small_messages_are_better_sent_together(small, told):
    text = reduced({("gloo", 2, 1): small, ("gloo", 2, 100): 99.0 + small}, CPU)
    assert ("So messages as small as the smallest are better sent together over Gloo." in text) == told


@pytest.mark.parametrize(("backend", "guess"), [("gloo", True), ("nccl", False)])
def test_why_bus_bandwidth_falls(backend, guess):
    text = reduced({(backend, 2, 1): 10.0, (backend, 4, 1): 30.0}, GPU)
    assert "So bus bandwidth falls" in text
    assert ("perhaps because the processes of one host share its cores" in text) == guess


@pytest.mark.parametrize(
    ("many", "sentence"),
    [
        # In a ring 4 processes take (3/4) / (1/2) = 1.5 times as long as 2.
        (
            15.0,
            "1.50× as long between 4 processes as between 2; in a ring of links of equal speed it would be 1.50×. That",
        ),
        (30.0, "it would be 1.50×. So bus bandwidth falls, perhaps because the processes of one host share its cores"),
        (12.0, "it would be 1.50×. So bus bandwidth rises"),
    ],
)
def test_what_more_processes_cost(many, sentence):
    assert sentence in reduced({("gloo", 2, 1): 10.0, ("gloo", 4, 1): many}, CPU)
