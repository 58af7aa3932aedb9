"""Data-sheet rates and memory of GPUs."""

from cs336_systems.accounting.step_work import Rates
from cs336_systems.fit.recorded import recorded
from cs336_systems.measure.gpus import GPUS, NVIDIA, Gpu, gpu_of
from cs336_systems.record.machine import machine_label

GIB = 2**30
BINARY = GIB / 1e9
"""Data sheets round gibibytes and call them GB: an H200 of "141 GB" has 140.4 GiB."""
PCIE = 32e9
"""Bytes/s of PCIe 4.0 with 16 lanes: the link of GPUs without NVLink."""


def rates_of(gpu: Gpu) -> Rates:
    """Data-sheet rates of a GPU model."""
    return Rates(bf16=gpu.bf16, fp32=gpu.fp32, bandwidth=gpu.bandwidth, link=gpu.link or PCIE)


def memory_of(gpu: Gpu) -> float:
    """Bytes of a GPU model's memory: from its driver if it is recorded, or else from its data sheet."""
    known = {gpu_of(each.gpu): each.memory for each in (recorded(), *recorded().others)}
    return known.get(gpu, BINARY * gpu.memory)


def gpu_of_label(label: str) -> Gpu | None:
    """The GPU model of a machine's label, as in `nvidia-h200`; None if it is not listed."""
    labels = (label, label.removeprefix(machine_label(NVIDIA) + "-"))
    return next((gpu for gpu in GPUS for name in gpu.names if machine_label(name) in labels), None)
