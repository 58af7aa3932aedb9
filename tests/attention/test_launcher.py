"""How kernels are launched again with little work, and what a descriptor takes: without a GPU."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")

from triton.tools.tensor_descriptor import TensorDescriptor

from cs336_systems.attention import launcher
from cs336_systems.attention.launcher import Launch, described_as, ensure_described, largest_group

STORAGE = torch.arange(4096, dtype=torch.bfloat16)
FITTING = {
    "contiguous": STORAGE.view(2, 4, 32, 16),
    "heads out of one projection": STORAGE.view(2, 32, 4, 16).transpose(1, 2),
    "one row of any stride": STORAGE.view(2, 4, 32, 16)[:, :, :1].as_strided((2, 4, 1, 16), (2048, 512, 3, 1)),
    "a start at a multiple of 16 bytes": STORAGE[8:-8].view(1, 1, 255, 16),
}
COPIED = {
    "a start at no multiple of 16 bytes": STORAGE[1:33].view(1, 2, 16),
    "rows that start at none": STORAGE[: 5 * 17].view(1, 5, 17)[..., :16],
    "keys shared by all heads": STORAGE[:64].view(1, 1, 4, 16).expand(1, 3, 4, 16),
    "a transposed matrix": STORAGE.view(1, 16, 256).transpose(1, 2),
}


class Kernel:
    """A kernel as Launch sees it, and the calls that reach it by Triton's own launch or by the compiled kernel's."""

    def __init__(self):
        self.launches = []
        self.compiled = SimpleNamespace(function=7, packed_metadata=(4, 1, 0), run=lambda *x: self.reruns.append(x))
        self.reruns = []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.launches.append((grid, arguments, options))
            return self.compiled

        return launch


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda device: 5))
    monkeypatch.setattr(launcher, "driver", driver)
    monkeypatch.setattr(launcher, "INTERPRETED", False)


def test_from_the_second_call_on_the_compiled_kernel_is_launched():
    kernel = Kernel()
    launch = Launch(kernel, (2, 3, 4), [1.5], [64], num_stages=2)
    first, second = torch.zeros(2, 8)
    launch(first)
    launch(second)
    assert kernel.launches == [
        ((2, 3, 4), (first, 1.5, 64), {"enable_fp_fusion": True, "num_warps": 4, "num_stages": 2})
    ]
    assert kernel.reruns == [(2, 3, 4, 5, 7, (4, 1, 0), None, None, None, second.data_ptr(), 1.5, 64)]


def test_misaligned_tensors_do_not_reach_a_kernel_compiled_for_aligned_ones():
    kernel = Kernel()
    launch = Launch(kernel, (1, 1, 1), [], [])
    storage = torch.zeros(16)
    for x in (storage[1:], storage[1:], storage, storage[1:]):
        launch(x)
    assert len(kernel.launches) == 4
    assert not kernel.reruns
    launch(storage)
    assert len(kernel.reruns) == 1


def test_descriptors_are_made_anew_for_each_calls_tensors():
    kernel = Kernel()
    x, y, out = torch.zeros(3, 2, 4, 16)
    make = partial(TensorDescriptor, **described_as(x.shape, x.stride()), block_shape=[1, 1, 4, 16])
    launch = Launch(kernel, (1, 1, 1), [], [], descriptors=[make])
    for tensor in (x, y, x):
        launch(tensor, out)
    assert [run[9] for run in kernel.reruns] == [make(y), make(x)]
    assert [run[9].base.data_ptr() for run in kernel.reruns] == [y.data_ptr(), x.data_ptr()]
    assert all(run[10] == out.data_ptr() for run in kernel.reruns)


@pytest.mark.parametrize("x", FITTING.values(), ids=FITTING)
def test_what_a_descriptor_takes_is_not_copied(x):
    assert ensure_described(x) is x
    TensorDescriptor(x, **described_as(x.shape, x.stride()), block_shape=[1, 1, 16, 16])  # which checks it


@pytest.mark.parametrize("x", COPIED.values(), ids=COPIED)
def test_what_a_descriptor_does_not_take_is_copied(x):
    copy = ensure_described(x)
    assert torch.equal(copy, x)
    TensorDescriptor(copy, **described_as(copy.shape, copy.stride()), block_shape=[1, 1, 16, 16])


@pytest.mark.parametrize(("limit", "batch_heads", "group"), [(8, 100, 5), (8, 16, 8), (None, 12, 12), (32, 7, 7)])
def test_groups_are_alike(limit, batch_heads, group):
    assert largest_group(limit, batch_heads) == group
