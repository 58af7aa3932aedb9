"""Detect this machine without importing torch, so that the pipeline can ask before anything runs.

Launch: python -m cs336_systems.record.machine, which prints it in the form of config.yaml's key `machine`.
"""

import argparse
import contextlib
import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

SOFTWARE = {
    "driver": "NVIDIA driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "torch": "PyTorch",
    "triton": "Triton",
    "flash_attn": "FlashAttention-4",
    "python": "Python",
}
"""Columns of versions in every row, with their display names."""


@dataclass(frozen=True)
class Machine:
    """The hardware that experiments run on."""

    gpus: tuple[str, ...]
    """Model of each visible GPU, in order."""
    gpu_memory: int
    """Bytes of the first GPU's memory; 0 without a GPU."""
    driver: str
    """NVIDIA driver version; empty without a GPU."""
    cpu: str
    """Processor model."""
    cpu_count: int
    """Logical cores this process may use."""
    links: str = ""
    """Links of the first GPU to others, as in "18 NVLinks" or "PCIe 5.0 x16"; empty where the driver does not say."""

    @property
    def name(self) -> str:
        """The GPU model, or the processor without a GPU."""
        return self.gpus[0] if self.gpus else self.cpu

    @property
    def label(self) -> str:
        """The name of the folder of this machine's results."""
        return machine_label(self.gpus[0] if self.gpus else "")


def machine_label(gpu: str) -> str:
    """Turn a GPU model into a folder name: 'NVIDIA H200' is 'nvidia-h200'; no GPU is 'cpu'."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "cpu"


def version_of(package: str) -> str:
    """The version of an installed package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def detect() -> Machine:
    """Detect the machine this process runs on, honouring CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: CUDA_VISIBLE_DEVICES has a UUID of no GPU on this machine.
    """
    gpus, gpu_memory, driver, links = _visible_gpus()
    return Machine(
        gpus=gpus,
        gpu_memory=gpu_memory,
        driver=driver,
        cpu=_cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        links=links,
    )


def _visible_gpus() -> tuple[tuple[str, ...], int, str, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), 0, "", ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            handles = _visible_handles(visible, handles)
        if not handles:
            return (), 0, "", ""
        names = tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handles[0]).total)
        return names, memory, str(pynvml.nvmlSystemGetDriverVersion()), _links(handles[0])
    finally:
        pynvml.nvmlShutdown()


def _links(gpu: Any) -> str:
    active = 0
    with contextlib.suppress(pynvml.NVMLError):  # it has no further link
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            active += pynvml.nvmlDeviceGetNvLinkState(gpu, link)
    if active:
        return f"{active} NVLinks"
    with contextlib.suppress(pynvml.NVMLError):
        generation, width = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
        return f"PCIe {generation}.0 x{width}"
    return ""


def _visible_handles(visible: str, handles: list[Any]) -> list[Any]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by index or UUID; like CUDA, up to the first invalid entry.

    Raises:
        ValueError: a UUID of no GPU on this machine, which can only be a mistake.
    """
    chosen = []
    for entry in (entry.strip() for entry in visible.split(",")):
        if re.fullmatch("[0-9]+", entry) and int(entry) < len(handles):
            chosen.append(handles[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            chosen.append(_by_uuid(entry, handles))
        else:
            break
    return chosen


def _by_uuid(uuid: str, handles: list[Any]) -> Any:
    known = {str(pynvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
    # CUDA accepts the beginning of a UUID if it is unique.
    if len(chosen := [handle for name, handle in known.items() if name.startswith(uuid)]) == 1:
        return chosen[0]
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)  # a GPU partition
    except pynvml.NVMLError:
        allowed = ", ".join(known)
        raise ValueError(f"CUDA_VISIBLE_DEVICES names {uuid!r}; allowed: an index, or one of {allowed}") from None


def _cpu_model() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as cpuinfo:
            names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    argparse.ArgumentParser(description="Print this machine in the form of config.yaml's key `machine`.").parse_args()
    machine = detect()
    print(f"{len(machine.gpus)} x {machine.gpus[0]}" if machine.gpus else "cpu")
