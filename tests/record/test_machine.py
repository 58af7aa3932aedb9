"""Detection of the machine: its GPUs, processor, memory and label."""

import os

import psutil
import pynvml
import pytest
import torch

from cs336_systems.record.machine import Machine, detect, machine_label


class TwoGpus:
    """The driver of a machine with two GPUs, as far as `detect` asks it."""

    NVMLError = pynvml.NVMLError
    NAMES = ("NVIDIA A10", "NVIDIA H200")

    def nvmlInit(self): ...

    def nvmlShutdown(self): ...

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return ("GPU-aaaa", "GPU-bbbb")[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        raise self.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, handle):
        return self.NAMES[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": 100 + handle})

    def nvmlSystemGetDriverVersion(self):
        return "580.1"


@pytest.mark.parametrize(
    ("gpu", "label"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("  (Weird) GPU/№1 ", "weird-gpu-1"),
        ("", "cpu"),
    ],
)
def test_label_is_a_folder_name(gpu, label):
    assert machine_label(gpu) == label


@pytest.mark.parametrize("visible", ["", " ", "-1"])
def test_without_visible_gpus_the_machine_is_its_processor(monkeypatch, visible):
    monkeypatch.setattr("cs336_systems.record.machine.pynvml", TwoGpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = detect()
    assert (machine.gpus, machine.gpu_memory, machine.driver, machine.label) == ((), 0, "", "cpu")
    assert machine.name == machine.cpu != ""


@pytest.mark.parametrize(
    ("visible", "gpus", "memory"),
    [
        (None, ("NVIDIA A10", "NVIDIA H200"), 100),
        ("0", ("NVIDIA A10",), 100),
        ("1", ("NVIDIA H200",), 101),
        ("1,0", ("NVIDIA H200", "NVIDIA A10"), 101),
        ("GPU-bbbb", ("NVIDIA H200",), 101),
        ("GPU-b", ("NVIDIA H200",), 101),
        ("1,²", ("NVIDIA H200",), 101),
    ],
)
def test_visible_gpus_are_those_of_the_environment_in_its_order(monkeypatch, visible, gpus, memory):
    monkeypatch.setattr("cs336_systems.record.machine.pynvml", TwoGpus())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = detect()
    assert (machine.gpus, machine.gpu_memory, machine.driver) == (gpus, memory, "580.1")
    assert machine.name == gpus[0]


@pytest.mark.parametrize("unknown", ["GPU-cccc", "GPU-", "MIG-1"])
def test_a_uuid_that_no_gpu_has_is_named(monkeypatch, unknown):
    monkeypatch.setattr("cs336_systems.record.machine.pynvml", TwoGpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,{unknown}")
    with pytest.raises(ValueError, match=f"names '{unknown}'; allowed: an index, or one of GPU-aaaa, GPU-bbbb"):
        detect()


def test_cores_and_memory_are_the_systems():
    machine = detect()
    assert machine.cpu_count == len(os.sched_getaffinity(0))
    assert machine.memory == psutil.virtual_memory().total


def test_several_gpus_of_a_kind_share_a_label():
    shared = {"gpu_memory": 1, "driver": "", "cpu": "", "cpu_count": 1, "memory": 1}
    one, two = (Machine(gpus=("NVIDIA H200",) * count, **shared) for count in (1, 2))
    assert one.label == two.label == "nvidia-h200"


@pytest.mark.gpu
def test_the_driver_and_pytorch_agree():
    machine = detect()
    assert machine.gpus[0] == torch.cuda.get_device_name(0)
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.driver
