"""The update during the backward pass: the weights of an optimizer in one process, given the mean gradients."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.model import TransformerLM
from cs336_systems.parallel.update_in_backward import UpdateInBackward, UpdateOfOneRank, units_of
from cs336_systems.training import MasterAdamW
from tests.support.ranks import on_all_ranks, on_two_and_on_four_ranks
from tests.verify.training import take_step

ADAMW = {"lr": 0.01, "weight_decay": 0.1}
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, ADAMW),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),  # which notices a factor of all gradients
}
STEPS, EXAMPLES = 4, 3


def layers(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).to(device)


def batch(step, device, ranks):
    """The examples of all ranks, [ranks, EXAMPLES, 5]."""
    return torch.randn(ranks, EXAMPLES, 5, generator=torch.Generator().manual_seed(step)).to(device)


@pytest.mark.numeric
@pytest.mark.parametrize("kind", OPTIMIZERS)
@on_two_and_on_four_ranks
def test_the_weights_are_those_of_one_process(device, kind):
    module = layers(device)
    if dist.get_rank() > 0:  # rank 0's weights are broadcast
        nn.init.zeros_(module[0].weight)
    optimizer_cls, kwargs = OPTIMIZERS[kind]
    update = UpdateInBackward(units_of(module), optimizer_cls, process_group=dist.new_group(), **kwargs)
    for step in range(STEPS):
        module(batch(step, device, dist.get_world_size())[dist.get_rank()]).square().mean().backward()
        update.finish()
        assert all(parameter.grad is None for parameter in module.parameters())
    exact = layers(device)
    optimizer = optimizer_cls(exact.parameters(), **kwargs)
    for step in range(STEPS):
        take_step(exact, optimizer, batch(step, device, update.ranks).flatten(0, 1))
    for (name, ours), theirs in zip(module.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")
    states = [state for optimizer in update.optimizers for state in optimizer.state.values()]
    kept = sum(next(value.numel() for value in state.values() if value.numel() > 1) for state in states)
    assert kept == sum(len(unit.flat) for unit in update.units) / update.ranks


@pytest.mark.parametrize(("make", "dtype"), [(torch.optim.AdamW, torch.float32), (MasterAdamW, torch.bfloat16)])
@on_two_and_on_four_ranks
def test_the_state_loads_into_any_number_of_ranks(device, make, dtype):
    def train(module, optimizer, steps):
        for step in steps:
            module.zero_grad()
            x = batch(step, device, 1)[0].to(dtype)  # the same on all ranks
            module(x).float().square().mean().backward()
            optimizer.finish() if isinstance(optimizer, UpdateInBackward) else optimizer.step()
        return [parameter.detach().clone() for parameter in module.parameters()]

    module = layers(device).to(dtype)
    update = UpdateInBackward(units_of(module), make, **ADAMW)
    weights, state = train(module, update, range(STEPS)), update.state_dict()
    expected = train(module, update, range(STEPS, 2 * STEPS))
    one, whole = layers(device).to(dtype), layers(device).to(dtype)
    for model, resumed in (
        (module, update),
        (one, UpdateOfOneRank(units_of(one), make, lr=1.0)),
        (whole, make(whole.parameters(), lr=1.0)),
    ):
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        resumed.load_state_dict(copy.deepcopy(state))
        assert all(map(torch.equal, train(model, resumed, range(STEPS, 2 * STEPS)), expected))

    del state["state"][0]["exp_avg"]
    before = update.state_dict()
    with pytest.raises(ValueError, match="states of different entries"):
        update.load_state_dict(state)
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters; allowed: \[6\]"):
        update.load_state_dict(make([torch.zeros(1)]).state_dict())
    torch.testing.assert_close(update.state_dict(), before, rtol=0, atol=0)


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


def test_a_rank_without_the_others_updates_its_share_only():
    module = layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.AdamW, ranks=2, **ADAMW)
    before = [unit.flat.clone() for unit in update.units]
    module(torch.randn(4, 5)).square().mean().backward()
    update.finish()
    for flat, unit in zip(before, update.units, strict=True):
        half = len(flat) // 2
        assert torch.equal(flat[half:], unit.flat[half:])
    # Shares are multiples of 256 bytes: of the second layer's 72 numbers, this rank has the first 64.
    changed = before[1] != update.units[1].flat
    assert changed[:64].all()
    assert not changed[64:].any()


def test_units_are_blocks_and_what_is_between_them():
    model = TransformerLM(11, 6, 8, num_layers=2, num_heads=2, d_ff=12, rope_theta=1e4)
    model.scale = nn.Parameter(torch.ones(()))
    names = {parameter: name for name, parameter in model.named_parameters()}
    embedding, first, second, rest = [[names[parameter] for parameter in unit] for unit in units_of(model)]
    assert embedding == ["scale", "token_embedding.weight"]
    assert rest == ["final_norm.weight", "lm_head.weight"]
    assert [name.removeprefix("blocks.0.") for name in first] == [name.removeprefix("blocks.1.") for name in second]
    assert len(first) == 9
    assert len(units_of(nn.Linear(2, 2))) == 1


def test_a_step_follows_a_failed_one_with_new_hyperparameters():
    module, twin = layers("cpu"), layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.SGD, lr=1.0)
    module[2](torch.randn(4, module[2].in_features)).sum().backward()  # no other gradients
    update.zero_grad()
    twin.load_state_dict(module.state_dict())
    for group in update.param_groups:
        group["lr"] = 0.5
    x = torch.randn(4, 5)
    for model in (module, twin):
        model(x).square().sum().backward()
    update.finish()
    for parameter, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), other.detach() - 0.5 * other.grad)


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
    tied = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="share memory"):
        UpdateOfOneRank([[tied, nn.Parameter(tied.detach()[1])]], torch.optim.AdamW)
    with pytest.raises(ValueError, match="parameter 0 of unit 0 is on the meta device"):
        UpdateOfOneRank([[nn.Parameter(torch.zeros(2, device="meta"))]], torch.optim.AdamW)
    for optimizer_cls in (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.SparseAdam):
        with pytest.raises(
            ValueError, match=f"optimizer_cls is {optimizer_cls.__name__}; allowed: elementwise optimizers"
        ):
            UpdateOfOneRank([[tied]], optimizer_cls)
    assert tied.untyped_storage().nbytes() == tied.nbytes, "a refusal leaves parameters where they are"
    module = layers("cpu")
    update = UpdateOfOneRank(units_of(module), torch.optim.AdamW)
    module[0](torch.randn(4, 5)).sum().backward()
    with pytest.raises(RuntimeError, match="a second backward pass"):
        module[0](torch.randn(4, 5)).sum().backward()
    with pytest.raises(RuntimeError, match="2 of the 2 gradients of unit 1 have not been computed"):
        update.finish()
