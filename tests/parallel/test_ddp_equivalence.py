"""Every wrapper trains like one process on the whole batch; and the comparison notices one that does not."""

import pytest
from torch import nn

from cs336_systems.parallel.data_parallel import DataParallel, NaiveDataParallel, average
from cs336_systems.parallel.ddp_equivalence import MODELS, VARIATIONS, WRAPPERS, compare, format_comparisons, main
from tests.support.ranks import on_all_ranks

ALL = WRAPPERS | VARIATIONS


@pytest.mark.numeric
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wrapper", ALL)
@on_all_ranks
def test_a_wrapper_trains_like_one_process(device, model, wrapper):
    found = compare(MODELS[model], ALL[wrapper], device)
    assert found.passed, found


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


class ZerosForNone(NaiveDataParallel):
    def _drop_gradients_of_none(self, absent):
        pass


@pytest.mark.numeric
@pytest.mark.parametrize("wrap", [Unsynchronized, Summing, Forgetful, ZerosForNone])
@on_all_ranks
def test_the_comparison_notices_what_is_wrong(device, wrap):
    found = compare(MODELS["odd"], wrap, device)
    assert found.difference > 10 * found.bound, found


class Alone(nn.Module):
    """No wrapper at all: each rank keeps its own weights."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.forward = module.forward


@pytest.mark.numeric
@on_all_ranks
def test_the_comparison_notices_ranks_that_differ(device):
    found = compare(MODELS["transformer"], Alone, device)
    assert not found.same_bits
    assert format_comparisons([("transformer", "alone", found)]).endswith("  no         FAILED")


@pytest.mark.slow
def test_the_command_prints_a_verdict_on_each_wrapper(groups, tmp_path):
    printed = tmp_path / "printed"
    groups("gloo", 2).run_module("cs336_systems.parallel.ddp_equivalence", ["--device", "cpu"], printed)
    lines = printed.read_text().splitlines()
    for wrapper in ALL:
        verdicts = [line for line in lines if f" {wrapper}  " in line]
        assert [line.split()[-1] for line in verdicts] == ["passed"] * len(MODELS)


def test_the_command_asks_for_processes():
    with pytest.raises(SystemExit, match="launch it with torchrun"):
        main()
