"""Compile kernels for a GPU that is not there: a driver for Triton that has the chip's limits and launches nothing.

Tensors are on the meta device. Triton compiles to machine code as it would on the chip, and refuses what does not fit.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from cs336_systems.attention.launcher import Launch
from scripts.docs.gpus import CLASSES

SHARED_MEMORY = {10 * major + minor: kilobytes for (major, minor), (_, kilobytes, _) in CLASSES.items()}
"""KB of shared memory that a program may ask for, by compute capability, as docs/gpus.md says."""
REGISTERS = 65536


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: its resources on the chip."""

    name: str
    shared: int
    registers: int
    stack: int
    """Bytes per thread, into which registers are spilled."""


@dataclass
class FakeGpu:
    """Driver of a GPU of a compute capability, such as 86."""

    capability: int
    compiled: list[Compiled] = field(default_factory=list)

    @property
    def utils(self) -> "FakeGpu":
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_MEMORY[self.capability] * 1024, "multiprocessor_count": 100, "warpSize": 32}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        registers, stack = resources(kernel)
        self.compiled.append(Compiled(name, shared, registers, stack))
        return 0, 0, registers, stack, min(1024, REGISTERS // max(registers, 1) // 32 * 32)

    def unload_module(self, module: int) -> None:
        pass

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments, **options: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it has compiled by device

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread and bytes of stack of a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        output = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    used = re.search(r"REG:(\d+) STACK:(\d+)", output.stdout)
    assert used, output.stdout
    return int(used[1]), int(used[2])


@contextlib.contextmanager
def fake_gpu(capability: int) -> Iterator[FakeGpu]:
    """Make Triton compile for a chip what is launched on tensors of the meta device."""
    gpu = FakeGpu(capability)

    def launch(self: Launch, *tensors: torch.Tensor) -> None:
        self._launch_anew(tensors, gpu.capability, keep=False)

    with mock.patch.object(driver, "_active", gpu), mock.patch.object(Launch, "__call__", launch):
        yield gpu
