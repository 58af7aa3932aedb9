"""Profile one step with Nsight Systems, if it is installed: this module runs again under it, with named ranges.

Launch: python -m cs336_systems.artifacts.nsys --size small --precision bf16 --output training_step.nsys-rep
"""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import torch

from cs336_systems.artifacts.one_step import parse_step
from cs336_systems.benchmarks.kernel_profile import prepare_step
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.kernel_profile import module_ranges, run_steps
from cs336_systems.ranges import listening

NOT_INSTALLED = (
    "nsys is not on the PATH, so no .nsys-rep file was written; `snakemake kernel_profile` measures the same kernels "
    "without it, and `snakemake kernel_trace` writes a trace that opens in ui.perfetto.dev."
)
UNDER_NSYS = "CS336_SYSTEMS_UNDER_NSYS"
"""Environment variable of the process that is profiled."""


def run_with_ranges(cell: KernelProfile, device: torch.device) -> None:
    """Run the step with its stages and modules as NVTX ranges, and signal a waiting profiler to capture it."""
    step = prepare_step(cell, device)
    capture = torch.cuda.profiler.profile() if device.type == "cuda" else nullcontext()
    with capture, module_ranges(step.forward_model), listening():
        run_steps(step.stages(cell.mode), 1, device)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    cell, device, options = parse_step("nsys", KernelProfile, arguments)
    if UNDER_NSYS in os.environ:
        run_with_ranges(cell, device)
        sys.exit()
    if not (nsys := shutil.which("nsys")):
        print(NOT_INSTALLED)
        sys.exit()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    # Without a GPU nothing would start the capture.
    waiting = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if device.type == "cuda" else []
    command = [nsys, "profile", "--trace=cuda,nvtx,cublas", *waiting, "--force-overwrite=true"]
    command += [f"--output={options.output}", sys.executable, "-m", "cs336_systems.artifacts.nsys", *arguments]
    sys.exit(subprocess.run(command, env=os.environ | {UNDER_NSYS: "1"}, check=False).returncode)
