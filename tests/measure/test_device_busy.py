"""How long a device works, against kernels whose time is known from events."""

import time

import pytest
import torch

from cs336_systems.measure.device_busy import device_activity, device_busy
from cs336_systems.measure.intervals import covered

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ADDITIONS = 20


def test_a_cpu_has_no_time_of_its_own():
    (row,) = device_busy({"step": lambda: pytest.fail("it runs")}, CPU)
    assert (row.metric, row.status) == ("device_busy", "skipped")
    assert "on a CPU" in row.message


@pytest.fixture
def numbers():
    """Enough that a kernel that adds one to each takes about a millisecond."""
    return torch.zeros(2**29, device=GPU)


def seconds_per_addition(numbers):
    """By events around many."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    numbers.add_(1)
    start.record()
    for _ in range(ADDITIONS):
        numbers.add_(1)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / ADDITIONS


@pytest.mark.gpu
def test_each_phase_has_the_time_of_its_own_kernels(numbers):
    def long():
        for _ in range(ADDITIONS):
            numbers.add_(1)
            time.sleep(0.005)  # the host keeps the device waiting

    phases = {"long": long, "none": lambda: time.sleep(0.01), "short": lambda: numbers.add_(1)}
    each = seconds_per_addition(numbers)
    for _ in range(3):  # as one profile follows another
        activity = device_activity(phases, GPU)
        launches = {name: len(ran) for name, ran in activity.items()}
        assert launches == {"long": ADDITIONS, "none": 0, "short": 1}
        assert covered(activity["long"]) == pytest.approx(ADDITIONS * each, rel=0.1)
        assert covered(activity["short"]) == pytest.approx(each, rel=0.1)


@pytest.mark.gpu
def test_a_step_that_launches_nothing_is_not_busy_for_no_time():
    (row,) = device_busy({"forward": lambda: None}, GPU)
    assert (row.metric, row.status, row.message) == ("device_busy", "skipped", "the profiler recorded no kernel")


@pytest.mark.gpu
def test_what_runs_at_the_same_time_counts_once():
    streams = [torch.cuda.Stream() for _ in range(2)]

    def phase():
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)  # clock cycles: 10 ms at 2 GHz

    phase()
    rows = {row.metric: row.mean for row in device_busy({"forward": phase}, GPU)}
    assert rows["launches"] == 2
    assert 8 < rows["forward_busy"] == rows["device_busy"] < 15


@pytest.mark.gpu
def test_the_host_is_as_fast_after_a_profile_as_before():
    x = torch.zeros(1, device=GPU)

    def launch_many():
        start = time.perf_counter()
        for _ in range(2000):
            x.add_(1)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def usual():
        # Seconds: other processes only lengthen it, once by a third for 1.7 s. With CUPTI attached it stays so long.
        return min(launch_many() for _ in range(200))

    usual()
    before = usual()
    for _ in range(2):
        assert len(device_activity({"step": launch_many}, GPU)["step"]) == 2000
        assert usual() < 1.1 * before
