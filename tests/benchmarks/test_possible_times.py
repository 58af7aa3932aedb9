"""The least possible times of attention, and facts about a call from a trace."""

import pytest
import torch

from cs336_systems.benchmarks.comparison.device_trace import Ran, Traced, count, trace
from cs336_systems.benchmarks.comparison.least_times import require_possible
from cs336_systems.measure.memory import Unavailable

H200 = "NVIDIA H200"
LONG = [torch.empty(16, 16384, 128, dtype=torch.bfloat16, device="meta") for _ in range(3)]
SHORT = [torch.empty(4096, 16, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]


@pytest.mark.parametrize(
    ("timed", "inputs", "precision", "why"),
    [
        ({"forward": 1.8e-3}, LONG, "bf16", ""),
        ({"forward": 0.9e-3}, LONG, "bf16", "forward was timed at 0.9 ms, less than the 0.967 ms of 1.1e+12 FLOPs in"),
        ({"forward": 1.8e-3, "backward": 1.8e-3}, LONG, "bf16", "backward was timed at 1.8 ms, less than the 1.93 ms"),
        ({"graph": 2.8e-3}, LONG, "bf16", "graph was timed at 2.8 ms, less than the 2.9 ms of 3.3e+12 FLOPs in bf16"),
        ({"forward": 1.8e-3}, LONG, "fp32", "forward was timed at 1.8 ms, less than the 5.8 ms"),
        ({"forward": 4e-6}, SHORT, "bf16", "forward was timed at 0.004 ms, less than the 0.00456 ms of reading"),
        ({"graph": 4e-6}, SHORT, "bf16", ""),  # which finds them in the L2 cache
    ],
)
def test_no_time_is_below_the_roofline(timed, inputs, precision, why):
    require_possible(timed, inputs, precision, "NVIDIA Unknown", is_causal=True)
    if not why:
        require_possible(timed, inputs, precision, H200, is_causal=True)
        return
    with pytest.raises(Unavailable, match=f"^not timed: {why.replace('+', '.')}"):
        require_possible(timed, inputs, precision, H200, is_causal=True)


def ran(name, stream, start, end):
    return Ran(name, stream, 1000 * start, 1000 * end)


MARKS = [ran("spin_kernel", 7, 10, 12), ran("spin_kernel", 7, 90, 92)]


@pytest.mark.parametrize(
    ("work", "seconds", "outside"),
    [
        ([("a", 7, 20, 40), ("b", 7, 50, 80)], 50, 0),
        ([("a", 7, 20, 60), ("b", 9, 40, 80)], 60, 0),  # another stream, for which this one waits
        ([("a", 9, 20, 95)], 75, 1),
        ([("a", 9, 5, 30)], 25, 1),
        ([("a", 7, 20, 40), ("b", 9, 200, 300)], 120, 1),
        ([("a", 7, 20, 40), ("spin_kernel", 9, 95, 99)], 24, 1),
    ],
)
def test_a_trace_shows_what_the_timed_stream_does_not_wait_for(work, seconds, outside):
    assert count([*MARKS, *(ran(*one) for one in work)]) == Traced(len(work), pytest.approx(seconds / 1e6), outside)


def test_a_trace_without_marks_says_nothing():
    assert count([ran("a", 7, 20, 40)]) is None


@pytest.mark.gpu
def test_work_on_another_stream_is_seen():
    device, other = torch.device("cuda"), torch.cuda.Stream()
    x = torch.randn(4096, 4096, device=device)

    def work(wait):
        with torch.cuda.stream(other):
            y = x @ x
        if wait:
            torch.cuda.current_stream().wait_stream(other)
        return [y]

    for wait in (True, False):
        traced = trace(lambda wait=wait: work(wait), device)
        assert (traced.kernels, traced.outside == 0) == (1, wait)
