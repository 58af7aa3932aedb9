"""Detection of the machine: its GPUs, processor, memory and label."""

import pytest
import torch

from cs336_systems.record.machine import detect, machine_label
from tests.workflow.stand_ins import pynvml


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr("cs336_systems.record.machine.pynvml", pynvml)
    monkeypatch.setenv("STAND_IN_GPUS", "NVIDIA A10,NVIDIA H200")


@pytest.mark.parametrize(("visible", "links"), [("0", "PCIe 4.0 x16"), ("1", "2 NVLinks"), ("", "")])
def test_links_of_the_first_gpu(monkeypatch, two_gpus, visible, links):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert detect().links == links


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
def test_without_visible_gpus_the_machine_is_its_processor(monkeypatch, two_gpus, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = detect()
    assert (machine.gpus, machine.gpu_memory, machine.driver, machine.label) == ((), 0, "", "cpu")
    assert machine.name == machine.cpu != ""


@pytest.mark.parametrize(
    ("visible", "gpus", "first"),
    [
        (None, ("NVIDIA A10", "NVIDIA H200"), 0),
        ("0", ("NVIDIA A10",), 0),
        ("1", ("NVIDIA H200",), 1),
        ("1,0", ("NVIDIA H200", "NVIDIA A10"), 1),
        ("GPU-100000", ("NVIDIA H200",), 1),
        ("GPU-1", ("NVIDIA H200",), 1),
        ("1,²", ("NVIDIA H200",), 1),
    ],
)
def test_visible_gpus_are_those_of_the_environment_in_its_order(monkeypatch, two_gpus, visible, gpus, first):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = detect()
    assert (machine.gpus, machine.gpu_memory, machine.driver) == (gpus, 141 * 2**30 + first, "580.1")
    assert machine.name == gpus[0]


@pytest.mark.parametrize("unknown", ["GPU-2", "GPU-", "MIG-1"])
def test_a_uuid_that_no_gpu_has_is_named(monkeypatch, two_gpus, unknown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,{unknown}")
    with pytest.raises(ValueError, match=f"names '{unknown}'; allowed: an index, or one of GPU-000000, GPU-100000"):
        detect()


@pytest.mark.gpu
def test_the_driver_and_pytorch_agree():
    machine = detect()
    assert machine.gpus[0] == torch.cuda.get_device_name(0)
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.driver
