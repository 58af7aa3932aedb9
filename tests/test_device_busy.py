"""How long a device works, against kernels that spin for a known time."""

import statistics
import time

import pytest
import torch

from cs336_systems.measure.device_busy import device_activity, device_busy
from cs336_systems.measure.intervals import covered

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CYCLES = 20_000_000  # 10 ms at 2 GHz


def test_a_cpu_has_no_time_of_its_own():
    (row,) = device_busy({"step": lambda: pytest.fail("it runs")}, CPU)
    assert (row.metric, row.status) == ("device_busy", "skipped")
    assert "CUDA" in row.message


def sleep_seconds():
    """How long the device spins for CYCLES, by events around the kernel."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


@pytest.mark.gpu
def test_each_phase_has_the_time_of_its_own_kernels():
    def long():
        for _ in range(3):
            torch.cuda._sleep(CYCLES)
            time.sleep(0.05)  # the host keeps the device waiting

    phases = {"long": long, "none": lambda: time.sleep(0.01), "short": lambda: torch.cuda._sleep(CYCLES)}
    sleep_seconds()
    each = sleep_seconds()
    activity = device_activity(phases, GPU)
    assert {name: len(intervals) for name, intervals in activity.items()} == {"long": 3, "none": 0, "short": 1}
    assert covered(activity["long"]) == pytest.approx(3 * each, rel=0.1)
    assert covered(activity["short"]) == pytest.approx(each, rel=0.1)


@pytest.mark.gpu
def test_what_runs_at_the_same_time_counts_once():
    streams = [torch.cuda.Stream() for _ in range(2)]

    def phase():
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)

    phase()
    rows = {row.metric: row.mean for row in device_busy({"forward": phase}, GPU)}
    assert rows["launches"] == 2
    assert rows["forward_busy"] == rows["device_busy"] < 1.5e3 * sleep_seconds()


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
        return statistics.median(launch_many() for _ in range(9))

    usual()
    before = usual()
    for _ in range(2):  # as one profile can follow another
        assert len(device_activity({"step": launch_many}, GPU)["step"]) == 2000
    assert usual() < 1.1 * before
