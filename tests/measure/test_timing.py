"""The clock: which phases run, in which order, and what their seconds add up to."""

import gc
import time

import pytest
import torch

from cs336_systems.measure.timing import time_phases

CPU = torch.device("cpu")


@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (2, 3)])
def test_phases_run_in_order_warm_up_first(warmup, steps):
    ran = []
    phases = {name: lambda name=name: ran.append(name) for name in ("forward", "backward", "optimizer")}
    seconds, laps = time_phases(phases, warmup=warmup, steps=steps, device=CPU)
    assert ran == ["forward", "backward", "optimizer"] * (warmup + steps)
    assert list(laps) == ["forward", "backward", "optimizer"]
    assert {len(samples) for samples in laps.values()} == {steps}
    assert seconds >= 0


def test_each_phase_has_its_own_time():
    naps = {"short": 0.01, "long": 0.03}
    start = time.perf_counter()
    warmup, laps = time_phases(
        {name: lambda nap=nap: time.sleep(nap) for name, nap in naps.items()}, warmup=2, steps=3, device=CPU
    )
    elapsed = time.perf_counter() - start
    assert warmup >= 2 * 0.04
    assert all(sample >= naps[name] for name, samples in laps.items() for sample in samples)
    # Laps leave no gap: together they are all the time that passed, but for the calls' own overhead.
    assert elapsed - 0.05 <= warmup + sum(map(sum, laps.values())) <= elapsed


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_phases_are_timed(enabled):
    states = []

    def phase():
        states.append(gc.isenabled())
        if len(states) == 3:
            raise RuntimeError("a step that fails")

    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="a step that fails"):
            time_phases({"step": phase}, warmup=1, steps=2, device=CPU)
        assert states == [False] * 3
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
