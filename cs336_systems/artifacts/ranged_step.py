"""Run one step with its stages and modules as NVTX ranges, for Nsight Systems to capture (see `nsys`).

Launch: nsys profile --capture-range=cudaProfilerApi python -m cs336_systems.artifacts.ranged_step --output ignored
"""

import contextlib
import sys
from collections.abc import Iterator

import torch

from cs336_systems.artifacts.one_step import parse_step
from cs336_systems.benchmarks.kernel_profile import prepare_step
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.kernel_profile import module_ranges, run_steps
from cs336_systems.ranges import listening


@contextlib.contextmanager
def captured(device: torch.device) -> Iterator[None]:
    """Start and stop the CUDA profiler around the code for a waiting profiler to capture."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    cell, device, _ = parse_step("ranged_step", KernelProfile, sys.argv[1:])
    step = prepare_step(cell, device)
    with captured(device), module_ranges(step.forward_model), listening():
        run_steps(step.stages(cell.mode), 1, device)
