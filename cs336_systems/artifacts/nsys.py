"""Profile one step with Nsight Systems, if it is installed.

Launch: python -m cs336_systems.artifacts.nsys --size small --precision bf16 --output training_step.nsys-rep
"""

import shutil
import subprocess
import sys

from cs336_systems.artifacts.one_step import parse_step
from cs336_systems.experiments.kernel_profile import KernelProfile

NOT_INSTALLED = (
    "nsys is not on the PATH, so no .nsys-rep file was written; `snakemake kernel_profile` measures the same kernels "
    "without it, and `snakemake kernel_trace` writes a trace that opens in ui.perfetto.dev."
)

if __name__ == "__main__":
    arguments = sys.argv[1:]
    _, device, options = parse_step("nsys", KernelProfile, arguments)
    if not (nsys := shutil.which("nsys")):
        print(NOT_INSTALLED)
        sys.exit()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    # Without a GPU nothing would start the capture.
    capture = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if device.type == "cuda" else []
    command = [nsys, "profile", "--trace=cuda,nvtx,cublas", *capture, "--force-overwrite=true"]
    command += [f"--output={options.output}", sys.executable, "-m", "cs336_systems.artifacts.ranged_step", *arguments]
    sys.exit(subprocess.run(command, check=False).returncode)
