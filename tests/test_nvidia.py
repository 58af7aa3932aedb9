"""Features of NVIDIA GPUs alone, where PyTorch is built for ROCm and calls its GPUs `cuda` too."""

import pytest
import torch

from cs336_systems.benchmarks.command_line import resolve_device
from cs336_systems.nvidia import NONE, compute_capability


@pytest.fixture
def capability(monkeypatch):
    """An MI250's, which PyTorch reports like a Hopper GPU's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.parametrize(("hip", "expected"), [(None, (9, 0)), ("6.4", NONE)])
def test_a_gpu_of_rocm_has_no_compute_capability(monkeypatch, capability, hip, expected):
    monkeypatch.setattr(torch.version, "hip", hip)
    assert compute_capability(torch.device("cuda")) == expected
    assert compute_capability(torch.device("cpu")) == NONE


def test_a_gpu_of_rocm_is_not_measured(monkeypatch, capability):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ValueError, match=r"^device is cuda, but PyTorch .* sees no NVIDIA GPU; allowed here: cpu$"):
        resolve_device("cuda")
