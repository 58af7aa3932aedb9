"""The instruments on the measuring machine, each compared with a known time or size."""

import time

import pytest
import torch

from cs336_systems.accounting.units import MIB
from cs336_systems.measure.device_busy import device_busy
from cs336_systems.measure.kernel_profile import run_steps
from cs336_systems.measure.memory import in_use, most_in_use, peak_memory, release, reset_peak
from cs336_systems.measure.timing import time_phases
from cs336_systems.record.provenance import rounds_to_tf32

pytestmark = pytest.mark.numeric

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NAP = 0.02
BLOCK = 64 * MIB
"""Bytes that the allocator does not round."""


@pytest.fixture
def sleep():
    """A kernel that keeps the device busy, and its time in seconds, by events around many of them."""
    cycles, launches = 20_000_000, 10  # 10 ms each at 2 GHz

    def launch():
        torch.cuda._sleep(cycles)

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(5 * launches):  # until the clock has risen
        launch()
    start.record()
    for _ in range(launches):
        launch()
    end.record()
    torch.cuda.synchronize()
    launch.seconds = start.elapsed_time(end) / 1e3 / launches
    return launch


def test_warm_up_is_not_among_the_samples():
    naps = iter([5 * NAP, 5 * NAP, NAP, NAP])
    warmup, seconds = time_phases({"step": lambda: time.sleep(next(naps))}, warmup=2, steps=2, device=CPU)
    assert warmup >= 10 * NAP
    assert all(NAP <= sample < 5 * NAP for sample in seconds["step"])


@pytest.mark.gpu
def test_a_phase_lasts_until_its_kernels_end(sleep):
    phases = {"launches": sleep, "waits": lambda: None}
    _, seconds = time_phases(phases, warmup=1, steps=3, device=GPU)
    assert all(sample == pytest.approx(sleep.seconds, rel=0.3) for sample in seconds["launches"])
    assert all(sample < 0.2 * sleep.seconds for sample in seconds["waits"])


@pytest.mark.gpu
def test_work_before_a_measurement_is_not_part_of_it(sleep):
    sleep()
    warmup, seconds = time_phases({"step": lambda: None}, warmup=0, steps=1, device=GPU)
    assert warmup + seconds["step"][0] < 0.2 * sleep.seconds


def test_stages_are_timed_apart():
    steps, stages = run_steps({"naps": lambda: time.sleep(NAP), "returns": lambda: None}, steps=2, device=CPU)
    assert all(NAP <= 1e-3 * sample < 5 * NAP for sample in stages["naps"])
    assert all(1e-3 * sample < NAP for sample in stages["returns"])
    assert all(step >= nap for step, nap in zip(steps, stages["naps"], strict=True))


@pytest.mark.gpu
def test_events_enclose_the_kernels_of_a_stage(sleep):
    def twice():
        sleep()
        sleep()

    steps, stages = run_steps({"once": sleep, "twice": twice}, steps=2, device=GPU)
    assert stages["once"] == pytest.approx([1e3 * sleep.seconds] * 2, rel=0.3)
    assert stages["twice"] == pytest.approx([2e3 * sleep.seconds] * 2, rel=0.3)
    assert all(step >= 2.5e3 * sleep.seconds for step in steps)


@pytest.mark.gpu
def test_a_busy_device_is_not_a_waiting_one(sleep):
    def waits():
        sleep()
        torch.cuda.synchronize()
        time.sleep(5 * sleep.seconds)

    rows = {row.metric: row.mean for row in device_busy({"forward": waits}, GPU)}
    assert rows["forward_busy"] == pytest.approx(1e3 * sleep.seconds, rel=0.3)


@pytest.mark.gpu
def test_a_peak_begins_anew_when_it_is_reset():
    release(GPU)
    before = in_use(GPU)
    block = torch.empty(2 * BLOCK, dtype=torch.uint8, device=GPU)
    del block
    assert most_in_use(GPU) >= before + 2 * BLOCK
    reset_peak(GPU)
    assert most_in_use(GPU) == before
    block = torch.empty(BLOCK, dtype=torch.uint8, device=GPU)
    assert most_in_use(GPU) == in_use(GPU) == before + BLOCK
    assert peak_memory(GPU, above=before).mean == BLOCK / MIB
    del block


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=str)
def test_the_probe_sees_full_precision(device):
    torch.set_float32_matmul_precision("highest")
    assert rounds_to_tf32(device) is False


@pytest.mark.gpu
def test_the_probe_sees_tf32():
    torch.set_float32_matmul_precision("high")
    try:
        assert rounds_to_tf32(GPU) is (torch.cuda.get_device_capability() >= (8, 0))  # Ampere brought TF32
    finally:
        torch.set_float32_matmul_precision("highest")
