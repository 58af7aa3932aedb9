"""Which kernels compute attention on a GPU, for tests of both."""

import pytest
import torch

LIMIT = pytest.mark.timeout(120, method="thread")
"""Kernels that wait for each other can hang; a signal would wait for the device."""


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.fixture
def hopper_kernels(monkeypatch):
    """Hopper's own kernels, also where others are faster, and with a version of Triton that has yet to be tested."""
    pytest.importorskip("triton.experimental.gluon", reason="needs Triton with Gluon")
    import triton

    from cs336_systems.attention import gpu_attention
    from cs336_systems.attention.hopper import launch

    monkeypatch.setattr(launch, "is_faster", lambda *_: True)
    monkeypatch.setattr(gpu_attention, "TESTED_TRITON", (".".join(triton.__version__.split(".")[:2]),))
    gpu_attention._kernels.cache_clear()
    yield
    gpu_attention._kernels.cache_clear()


@pytest.fixture(params=["Triton", pytest.param("Hopper", marks=LIMIT)])
def kernels(request, monkeypatch):
    """The Triton kernels, then Hopper's own."""
    if request.param == "Hopper" and not is_hopper():
        pytest.skip("no Hopper GPU")
    if request.param == "Hopper":
        request.getfixturevalue("hopper_kernels")
        yield "Hopper"
        return
    gpu_attention = pytest.importorskip("cs336_systems.attention.gpu_attention", exc_type=ImportError)
    monkeypatch.setattr(gpu_attention, "hopper_obstacle", lambda *_: "Triton's are tested")
    gpu_attention._kernels.cache_clear()
    yield "Triton"
    gpu_attention._kernels.cache_clear()
