"""How much memory tensors hold at one time, on any device: an allocator's count without an allocator."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of storages that operators make while it is on, from when each is made until it is freed."""

    def __init__(self, known):
        """`known`: tensors whose storages are not counted."""
        super().__init__()
        self.now = self.peak = 0
        self._living = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        if storage._cdata in self._living:
            return
        self._living.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, name, count):
        self._living.discard(name)
        self.now -= count
