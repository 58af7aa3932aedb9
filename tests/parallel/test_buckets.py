"""How parameters are put into buckets."""

import math

import pytest
import torch
from torch import nn

from cs336_systems.parallel.buckets import fill_buckets, group_tensors


def sized(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


@pytest.mark.parametrize(
    ("max_bytes", "groups"),
    [
        (0, [[0], [1], [2], [3], [4]]),
        (15, [[0], [1], [2], [3], [4]]),
        (16, [[0, 1], [2], [3, 4]]),  # exactly full; the third is larger than a bucket
        (40, [[0, 1], [2], [3, 4]]),
        (56, [[0, 1, 2], [3, 4]]),
        (math.inf, [[0, 1, 2, 3, 4]]),
    ],
)
def test_groups_hold_consecutive_tensors_up_to_their_size(max_bytes, groups):
    assert group_tensors(sized(3, 1, 10, 2, 2), max_bytes) == groups


def test_groups_have_one_dtype_and_come_in_the_order_in_which_they_are_complete():
    tensors = [*sized(1), *sized(1, dtype=torch.bfloat16), *sized(1, 2), *sized(1, dtype=torch.bfloat16), *sized(9)]
    assert group_tensors(tensors, math.inf) == [[1, 4], [0, 2, 3, 5]]
    assert group_tensors(tensors, 8) == [[0, 2], [3], [1, 4], [5]]


def test_a_lone_gradient_is_not_copied():
    (parameter,) = parameters = sized(3)
    (bucket,) = fill_buckets(parameters, math.inf)
    parameter.grad = torch.ones(3)
    assert bucket.gather() is parameter.grad


def test_gathered_gradients_have_the_strides_of_their_parameters():
    parameters = [nn.Parameter(torch.zeros(3, 5).mT), *sized(2)]
    (bucket,) = fill_buckets(parameters, math.inf)
    for parameter in parameters:
        parameter.grad = torch.arange(parameter.numel()).view(parameter.shape).float()
    bucket.gather()
    assert parameters[0].grad.stride() == parameters[0].stride() == (1, 5)
    assert torch.equal(parameters[0].grad, torch.arange(15.0).view(5, 3))
