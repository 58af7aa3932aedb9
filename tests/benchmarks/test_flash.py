"""The experiment on attention implementations."""

import pytest
import torch

from cs336_systems.benchmarks import flash
from cs336_systems.experiments.flash import Flash
from cs336_systems.measure.memory import Unavailable


def test_what_needs_a_gpu_is_skipped_on_a_cpu_with_a_reason(launch):
    cells = launch("flash", "--sequence", "16", "--implementation", "triton", "flex", "flash_attention_4")
    assert {metrics["cell"].status for metrics in cells} == {"skipped"}
    assert all("CUDA device" in metrics["cell"].message for metrics in cells)


@pytest.mark.parametrize("implementation", ["tiled", "plain", "sdpa_flash"])
def test_flash_measures_time_on_a_cpu(implementation):
    cell = Flash(sequence=40, d=16, implementation=implementation)
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cpu"))}
    both, parts = metrics["forward_backward"], [metrics[phase] for phase in ("forward", "backward")]
    assert {part.n for part in (both, *parts)} == {flash.CPU_CALLS}
    assert min(part.p20 for part in parts) > 0
    assert both.p20 > max(part.p20 for part in parts)
    assert metrics["peak_memory"].status == "skipped"


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["triton", "plain"])
def test_flash_measures_time_and_memory_on_a_gpu(implementation):
    cell = Flash(sequence=256, d=64, implementation=implementation, rep=5)
    torch._C._cuda_clearCublasWorkspaces()  # As before the first cell of a job.
    metrics = {measurement.metric: measurement for measurement in flash.measure(cell, torch.device("cuda"))}
    assert all(metrics[name].mean > 0 for name in ("forward", "backward", "forward_backward", "graph"))
    assert 0.1 < metrics["peak_memory"].mean < 1, "MiB: inputs, gradients, at most a few score matrices"


@pytest.mark.gpu
def test_each_implementation_runs_kernels_of_its_own():
    kernels = {}
    for implementation in flash.BUILDERS:
        cell = Flash(sequence=256, heads=2, implementation=implementation)
        inputs = flash.make_inputs(cell, torch.device("cuda"))
        try:
            call = flash.build(cell)
            call(*inputs).sum().backward()  # compiles
        except Unavailable:
            assert implementation == "flash_attention_4"
            continue
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            call(*inputs).sum().backward()
            torch.cuda.synchronize()
        kernels[implementation] = frozenset(event.key for event in seen.key_averages())
    assert len(set(kernels.values())) == len(kernels) >= 8
