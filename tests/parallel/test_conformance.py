"""Each wrapper trains like one process, as tests/verify asks of anybody's; and its tests notice one that does not."""

from unittest import mock

import pytest
from torch import nn

from cs336_systems.parallel.data_parallel import (
    BucketedDataParallel,
    DataParallel,
    FlatDataParallel,
    NaiveDataParallel,
    OverlappedDataParallel,
    average,
)
from cs336_systems.parallel.symmetric_memory_data_parallel import SymmetricMemoryDataParallel
from cs336_systems.parallel.variations import GroupedDataParallel, SmallLastDataParallel
from tests.parallel.test_data_parallel import test_gradients_are_means_whichever_parameters_a_rank_uses as odd_steps
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import WRAPPERS, same_on_all_ranks
from tests.verify import test_data_parallel as conformance
from tests.verify.training import MODELS

OURS = (
    NaiveDataParallel,
    FlatDataParallel,
    OverlappedDataParallel,
    BucketedDataParallel,
    SymmetricMemoryDataParallel,
    GroupedDataParallel,
    SmallLastDataParallel,
)


def implementation(wrapper):
    return f"{wrapper.__name__}={wrapper.__module__}:{wrapper.__name__}"


@pytest.mark.numeric  # On a machine that measures, too; tests/verify itself names its wrappers and imports none.
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wrapper", OURS)
@on_all_ranks
def test_a_wrapper_trains_like_one_process(device, model, wrapper):
    for module in conformance.compare(implementation(wrapper), model, device):
        assert same_on_all_ranks(module.parameters())


class Unsynchronized(DataParallel):
    def _average_gradients(self):
        pass


class Summing(NaiveDataParallel):
    def _average_gradients(self):
        super()._average_gradients()
        for parameter in self._trainable:
            parameter.grad *= 2


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


FAULTS = {
    (Unsynchronized, "gradients"): r"^the gradient of .* is off from the mean over ranks by ",
    (Unsynchronized, "training"): r"^after 3 steps .* is off from one process's by ",
    (Summing, "gradients"): "and 2 times as large, as a sum over ranks is",
    (Summing, "training"): r"^after 3 steps .* is off from one process's by ",
    (Forgetful, "gradients"): r"^the gradient of scale \[\] is off from the mean over ranks by ",
    (Forgetful, "training"): r"^after 3 steps .* is off from one process's by ",
    (Alone, "training"): "^after 3 steps ",  # what it is depends on the rank
}


@pytest.mark.parametrize(("wrapper", "test"), FAULTS)
@on_all_ranks
def test_what_is_wrong_is_noticed(device, wrapper, test):
    with pytest.raises(AssertionError, match=FAULTS[wrapper, test]):
        getattr(conformance, f"test_{test}").body(device, implementation(wrapper), "odd")


class ZerosForNone(NaiveDataParallel):
    def _drop_gradients_of_none(self, absent):
        pass


@on_all_ranks
def test_a_gradient_of_zero_in_place_of_none_is_noticed(device):
    with mock.patch.dict(WRAPPERS, zeros=ZerosForNone), pytest.raises(AssertionError, match=r"^module\.scale"):
        odd_steps.body(device, "zeros", {"set_to_none": True})
