"""Data-parallel wrappers that are wrong, each in one way that a test has to notice."""

from torch import nn

from cs336_systems.parallel.data_parallel import DataParallel, NaiveDataParallel, average


class Unsynchronized(DataParallel):
    """Gradients stay a rank's own."""

    def _average_gradients(self):
        pass


class Summing(NaiveDataParallel):
    """Gradients are sums over two ranks."""

    def _average_gradients(self):
        super()._average_gradients()
        for parameter in self._trainable:
            parameter.grad *= 2


class FirstStepOnly(NaiveDataParallel):
    """Gradients are averaged at the first step only."""

    steps = 0

    def _average_gradients(self):
        self.steps += 1
        if self.steps == 1:
            super()._average_gradients()


class Forgetful(DataParallel):
    """One number of the model stays at home."""

    def _average_gradients(self):
        for name, parameter in zip(self._names, self._trainable, strict=True):
            if name != "scale":
                average(parameter.grad).wait()


class Alone(nn.Module):
    """No wrapper at all: each rank keeps its own weights."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.forward = module.forward
