"""Sums of gradients over micro-batches against float64."""

import pytest
import torch
from torch import nn

from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.gradient_sums import GradientSums

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PASSES = 37


@pytest.mark.numeric
@pytest.mark.parametrize("device", DEVICES)
def test_sums_and_the_update_that_follows_are_those_of_fp32(device):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(33, 7, generator=generator).to(device, torch.bfloat16))
    wide, unused = (nn.Parameter(torch.ones(7, device=device)) for _ in range(2))
    reference = nn.Parameter(weight.detach().float())
    exact = torch.zeros(33, 7, dtype=torch.float64, device=device)
    with GradientSums([weight, wide, unused]) as sums:
        for _ in range(PASSES):
            factor = torch.randn(33, 7, generator=generator).to(device, torch.bfloat16)
            (weight * factor).sum().backward()
            (wide * factor.float()).sum().backward()
            exact += factor.double()  # the gradient, which bf16 holds exactly
    assert list(sums.gradients) == [weight]
    assert weight.grad is None

    def error(total):
        return ((total.double() - exact).norm() / exact.norm()).item()

    assert error(sums.gradients[weight]) < PASSES * 2**-24
    torch.testing.assert_close(wide.grad.double(), exact.sum(0), rtol=1e-5, atol=1e-5)
    (weight * factor).sum().backward()
    assert weight.grad is not None, "outside of the context gradients are kept as always"
    in_bf16 = torch.zeros_like(weight)
    for _ in range(PASSES):
        in_bf16 += factor
    assert ((in_bf16.double() - PASSES * factor.double()).norm() / (PASSES * factor.double()).norm()) > 2**-10

    optimizer, plain = MasterAdamW([weight, wide, unused], lr=0.1), torch.optim.AdamW([reference], lr=0.1)
    reference.grad = exact.float()
    optimizer.step(gradients=sums.gradients)
    plain.step()
    torch.testing.assert_close(optimizer.masters()[weight], reference.detach(), rtol=1e-6, atol=1e-6)
    moments = optimizer.state[weight]["exp_avg"], plain.state[reference]["exp_avg"]
    torch.testing.assert_close(*moments, rtol=1e-5, atol=1e-6)
