"""The update during the backward pass: the weights of an optimizer in one process, given the mean gradients."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.parallel.update_in_backward import UpdateInBackward, UpdateOfOneRank
from tests.parallel.test_variations import layers
from tests.support.ranks import on_all_ranks, on_two_and_on_four_ranks

ADAMW = {"lr": 0.01, "weight_decay": 0.1}
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, ADAMW),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),  # which notices a factor of all gradients
}
STEPS, EXAMPLES = 4, 3


def units_of(module):
    """A unit for each layer; none can be divided evenly."""
    return [[*layer.parameters()] for layer in module if isinstance(layer, nn.Linear)]


def batch(step, device, ranks):
    """The examples of all ranks, [ranks, EXAMPLES, 5]."""
    return torch.randn(ranks, EXAMPLES, 5, generator=torch.Generator().manual_seed(step)).to(device)


def reference(device, ranks, kind="AdamW"):
    """The module trained in one process, on the examples of all ranks."""
    module = layers(device)
    optimizer_cls, kwargs = OPTIMIZERS[kind]
    optimizer = optimizer_cls(module.parameters(), **kwargs)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(batch(step, device, ranks).flatten(0, 1)).square().mean().backward()
        optimizer.step()
    return module


@pytest.mark.numeric
@pytest.mark.parametrize("kind", OPTIMIZERS)
@on_two_and_on_four_ranks
def test_the_weights_are_those_of_one_process(device, kind):
    module = layers(device)
    if dist.get_rank() > 0:  # rank 0's weights are broadcast
        nn.init.zeros_(module[0].weight)
    optimizer_cls, kwargs = OPTIMIZERS[kind]
    update = UpdateInBackward(units_of(module), optimizer_cls, **kwargs)
    for step in range(STEPS):
        module(batch(step, device, dist.get_world_size())[dist.get_rank()]).square().mean().backward()
        update.finish()
        assert all(parameter.grad is None for parameter in module.parameters())
    exact = reference(device, update.ranks, kind)
    for (name, ours), theirs in zip(module.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")
    states = [state for optimizer in update.optimizers for state in optimizer.state.values()]
    kept = sum(next(value.numel() for value in state.values() if value.numel() > 1) for state in states)
    assert kept == sum(len(unit.flat) for unit in update.units) / update.ranks


@on_all_ranks
def test_passes_without_an_update_leave_the_weights(device):
    module = layers(device)
    update = UpdateInBackward(units_of(module), torch.optim.AdamW, **ADAMW)
    before = [parameter.clone() for parameter in module.parameters()]
    update.enabled = False
    module(torch.randn(4, 5, device=device)).sum().backward()
    update.finish()
    assert all(map(torch.equal, before, module.parameters()))
    assert all(parameter.grad is None for parameter in module.parameters())


@on_all_ranks
def test_ranks_with_other_parameters_are_refused(device):
    module = layers(device)[: 3 + 2 * dist.get_rank()]
    with pytest.raises(ValueError, match="rank 1"):
        UpdateInBackward([[*module.parameters()]], torch.optim.AdamW)


def test_one_rank_alone_is_the_whole_optimizer():
    module = layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.AdamW, **ADAMW)
    for step in range(STEPS):
        module(batch(step, "cpu", 1)[0]).square().mean().backward()
        update.finish()
    for ours, theirs in zip(module.parameters(), reference("cpu", 1).parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_rank_without_the_others_updates_its_share_only():
    module = layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.AdamW, rank=1, ranks=2, **ADAMW)
    before = [unit.flat.clone() for unit in update.units]
    module(torch.randn(4, 5)).square().mean().backward()
    update.finish()
    for flat, unit in zip(before, update.units, strict=True):
        half = len(flat) // 2
        assert torch.equal(flat[:half], unit.flat[:half])
    # Shares are multiples of 256 bytes: of the second layer's 72 numbers, this rank has the last 8.
    changed = before[1] != update.units[1].flat
    assert changed[64:72].all()
    assert not changed[72:].any()


def test_parameters_keep_their_order_in_memory():
    module = layers("cpu")
    (unit, *_) = UpdateOfOneRank(units_of(module), torch.optim.AdamW).units
    weight, bias = unit.parameters
    assert bias.data_ptr() == weight.data_ptr() + weight.nbytes
    assert unit.share.data_ptr() == weight.data_ptr()


def test_mistakes_are_refused():
    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    with pytest.raises(ValueError, match=r"torch\.bfloat16 on cpu, torch\.float32 on cpu; allowed: parameters of one"):
        UpdateOfOneRank([mixed], torch.optim.AdamW)
    with pytest.raises(ValueError, match="no parameters"):
        UpdateOfOneRank([[]], torch.optim.AdamW)
    module = layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.AdamW)
    module[0](torch.randn(4, 5)).sum().backward()
    with pytest.raises(RuntimeError, match="a second backward pass"):
        module[0](torch.randn(4, 5)).sum().backward()
    with pytest.raises(RuntimeError, match="2 of the 2 gradients of unit 1 have not been computed"):
        update.finish()
