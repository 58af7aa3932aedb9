"""Loss scaling and clipping: what PyTorch's tools do to plain data parallelism, or a refusal."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from tests.support.ranks import on_all_ranks
from tests.support.wrappers import SHARDED_OPTIMIZERS, same_on_all_ranks, sharded_by

ADAM = {"lr": 0.1, "betas": (0.5, 0.5)}
MODELS = {
    "layers": lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)),
    "one parameter": lambda: nn.Linear(5, 3, bias=False),  # one rank owns nothing
}
PLAIN = torch.amp.GradScaler


def sharded(module, kind, sharded_gradients):
    return sharded_by(kind, sharded_gradients, bucket_size_mb=0.0001)(module, partial(torch.optim.AdamW, **ADAM))


def overflow_where(module, place):
    """Let the gradient of one parameter overflow while the list that is returned has something in it."""
    overflowing = []

    def overflow(gradient):
        return gradient * torch.inf if overflowing else gradient

    list(module.parameters())[place].register_hook(overflow)
    return overflowing


@pytest.mark.parametrize(("scaler", "unscale"), [(PLAIN, False), (PLAIN, True), (ShardedGradScaler, True)])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharded_gradients", [False, True])
@pytest.mark.parametrize("kind", SHARDED_OPTIMIZERS)
@on_all_ranks
def test_an_overflow_anywhere_has_all_ranks_skip_the_step(device, kind, sharded_gradients, model, unscale, scaler):
    torch.manual_seed(0)
    modules = [MODELS[model]().to(device) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    places = len(list(modules[0].parameters()))
    wrapped, optimizer = sharded(modules[0], kind, sharded_gradients)
    reference = DistributedDataParallel(modules[1]), torch.optim.AdamW(modules[1].parameters(), **ADAM)
    scalers = [each(device.type, init_scale=8.0, growth_interval=2) for each in (scaler, PLAIN)]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which wraps `step`
    for place in range(places):
        # The last rank's gradients overflow in every other step, each time another parameter's.
        overflowing = [overflow_where(module, place) for module in modules]
        for bad in (False, True, False, False):
            torch.manual_seed(10 * place + dist.get_rank())
            x = torch.randn(4, 5, device=device)
            for (model_, each), scale, switch in zip(
                ((wrapped, optimizer), reference), scalers, overflowing, strict=True
            ):
                switch[:] = [True] if bad and dist.get_rank() else []
                each.zero_grad()
                scale.scale(model_(x).square().mean()).backward()
                if model_ is wrapped:
                    wrapped.finish_gradient_synchronization()
                if unscale:
                    scale.unscale_(each)
                with warnings.catch_warnings(record=True) as warned:
                    scale.step(each)
                assert warned == []
                scale.update()
            assert scalers[0].get_scale() == scalers[1].get_scale()
            for mine, theirs in zip(*(module.parameters() for module in modules), strict=True):
                assert torch.equal(mine, theirs)
            assert same_on_all_ranks(modules[0].parameters())


@on_all_ranks
def test_clipping_by_the_norm_of_one_ranks_gradients_is_refused(device):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(device)
    wrapped, optimizer = sharded(module, ShardedOptimizer, sharded_gradients=True)
    wrapped(torch.randn(4, 5, device=device)).sum().backward()
    wrapped.finish_gradient_synchronization()
    for clip in (
        lambda: nn.utils.clip_grad_norm_(wrapped.parameters(), 0.1),
        lambda: nn.utils.clip_grad_norm_(wrapped.parameters(), 0.1, foreach=True),
        lambda: nn.utils.get_total_norm([p.grad for p in wrapped.parameters() if p.grad is not None]),
    ):
        with pytest.raises(RuntimeError, match=r"allowed: clip_grad_norm_\(\) of the ShardedGradientsDataParallel"):
            clip()
    nn.utils.clip_grad_value_(wrapped.parameters(), 0.05)
    for gradient in (p.grad for p in wrapped.parameters() if p.grad is not None):
        assert gradient.norm() > 0  # one parameter's norm is known
        assert (gradient + 0).abs().max() <= 0.05
        assert type(gradient + 0) is torch.Tensor
    optimizer.step()
