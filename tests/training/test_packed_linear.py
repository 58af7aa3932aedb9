"""Packed matmuls: weights that may move, weights that must not, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from cs336_systems.training.packed_linear import packed_linear


class Pair(nn.Module):
    """A user's module of two packed layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 5, bias=False), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return packed_linear(x, (self.first.weight, self.second.weight))


def weights_of(pair):
    return [pair.first.weight, pair.second.weight]


def is_packed(pair):
    first, second = weights_of(pair)
    return second.data_ptr() == first.data_ptr() + first.nbytes


def check(pair):
    """Outputs and gradients follow the weights' current values, before and after a step."""
    for _ in range(2):
        weights = weights_of(pair)
        x = torch.randn(4, 3, 8, dtype=weights[0].dtype, requires_grad=True)
        y = pair(x)
        want = x @ torch.cat(weights).T
        torch.testing.assert_close(y, want)
        trained = [t for t in (x, *weights) if t.requires_grad]
        got = torch.autograd.grad(y.square().sum(), trained)
        torch.testing.assert_close(got, torch.autograd.grad(want.square().sum(), trained))
        with torch.no_grad():
            for weight in weights:
                weight.mul_(1.5)


def swapped(pair):
    pair.first.weight.data = torch.randn(5, 8)
    return pair


def assigned(pair):
    pair.load_state_dict({name: 2 * x for name, x in pair.state_dict().items()}, assign=True)
    return pair


def frozen(pair):
    pair.first.weight.requires_grad_(False)
    return pair


@pytest.mark.parametrize("run_before", [False, True])
@pytest.mark.parametrize(
    "change", [lambda pair: pair, swapped, assigned, frozen, copy.deepcopy, lambda pair: pair.double()]
)
def test_parameters_are_packed_again(change, run_before):
    pair = Pair()
    if run_before:
        pair(torch.randn(2, 8))
    pair = change(pair)
    dtypes = [weight.dtype for weight in weights_of(pair)]
    check(pair)
    assert is_packed(pair)
    assert [weight.dtype for weight in weights_of(pair)] == dtypes


def flat(pair):
    """A buffer that an optimizer would update."""
    buffer = torch.randn(64)
    pair.first.weight.data, pair.second.weight.data = buffer[24:].view(5, 8), buffer[:24].view(3, 8)
    return buffer


def state(pair):
    """A state dict that somebody keeps, and loads into."""
    return pair.state_dict()["second.weight"]


@pytest.mark.parametrize("share", [flat, state])
def test_memory_that_is_shared_stays_where_it_is(share):
    pair = Pair()
    shared = share(pair)
    check(pair)
    shared.fill_(2.0)
    check(pair)
    assert (weights_of(pair)[1] == 2.0 * 1.5**2).all(), "still in the shared memory"
    assert not is_packed(pair)
    del shared
    check(pair)
    assert is_packed(pair), "nobody else shares it"


def test_inference_moves_nothing():
    pair = Pair()
    with torch.inference_mode():
        pair(torch.randn(2, 8))
    assert not any(weight.is_inference() for weight in weights_of(pair))
    check(pair)


def test_a_weight_that_changes_before_its_backward_pass_is_missed():
    pair = Pair()
    y = pair(torch.randn(2, 8, requires_grad=True))
    with torch.no_grad():
        pair.second.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_one_token_and_rows_of_one_weight():
    whole = torch.randn(6, 8, requires_grad=True)
    x = torch.randn(8, requires_grad=True)
    got = torch.autograd.grad(packed_linear(x, (whole[:2], whole[2:])).square().sum(), (x, whole))
    torch.testing.assert_close(got, torch.autograd.grad((whole @ x).square().sum(), (x, whole)))


def test_weights_of_different_kinds_are_refused_and_stay():
    a, x = nn.Parameter(torch.randn(4, 8)), torch.randn(2, 8)
    for b in (nn.Parameter(torch.randn(4, 8).bfloat16()), nn.Parameter(torch.randn(4, 7)), nn.Parameter(torch.ones(8))):
        dtypes, addresses = (a.dtype, b.dtype), (a.data_ptr(), b.data_ptr())
        with pytest.raises(ValueError, match=r"allowed: \[d_out, d_in\] each, of one d_in, dtype and device"):
            packed_linear(x, (a, b))
        assert ((a.dtype, b.dtype), (a.data_ptr(), b.data_ptr())) == (dtypes, addresses)
    with pytest.raises(ValueError, match="there are 0 packed weights"):
        packed_linear(x, ())
