"""A sharded optimizer of anybody's: the weights of the optimizer that it shards."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.implementations import load_path, parse
from tests.support.ranks import on_two_and_on_four_ranks
from tests.verify.training import STEPS, make_model, require_same_way, weights_of

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


class Odd(nn.Module):
    """Shapes of all sizes: a number, a vector, a matrix that is not contiguous, and one that outweighs the rest."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.vector = nn.Parameter(torch.randn(7))
        self.transposed = nn.Parameter(torch.randn(3, 5).mT)
        self.large = nn.Parameter(torch.randn(130, 33))
        self.three = nn.Parameter(torch.randn(2, 3, 5))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(5))


class One(nn.Module):
    """Fewer parameters than ranks."""

    def __init__(self):
        super().__init__()
        self.only = nn.Parameter(torch.randn(3, 5))


def copies(make, device):
    """The same module on all ranks, twice."""
    torch.manual_seed(0)
    ours = make().to(device)
    alone = make().to(device)
    alone.load_state_dict(ours.state_dict())
    return ours, alone


def set_gradients(module, step):
    """Gradients that are the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and name != "unused":
            values = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.empty_like(parameter).copy_(values)


def compare(modules, optimizers, after_each_step=lambda optimizer: None, steps=STEPS):
    """Take steps with the sharded optimizer and with the one that is not, and compare the weights after each."""
    before = weights_of(modules[1])
    for step in range(steps):
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            set_gradients(module, step)
            optimizer.step()
            after_each_step(optimizer)
        require_same_way(*map(weights_of, modules), before, f"after step {step + 1}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shapes", [Odd, One], ids=["odd shapes", "fewer parameters than ranks"])
@on_two_and_on_four_ranks
def test_steps(device, implementation, shapes, optimizer):
    """Weights after each step are those of the optimizer alone."""
    modules = copies(shapes, device)
    optimizer_cls, kwargs = OPTIMIZERS[optimizer]
    sharded = load_path(parse(implementation).path)(modules[0].parameters(), optimizer_cls, **kwargs)
    compare(modules, (sharded, optimizer_cls(modules[1].parameters(), **kwargs)))


def groups_of(module):
    """Parameters in two groups, the second with a learning rate of its own."""
    parameters = list(module.parameters())
    return [{"params": parameters[:3], "weight_decay": 0.1}, {"params": parameters[3:], "lr": 0.02}]


@on_two_and_on_four_ranks
def test_groups_and_schedule(device, implementation):
    """Groups with hyperparameters of their own, and a learning rate that changes after each step."""
    modules = copies(Odd, device)
    optimizer_cls, kwargs = OPTIMIZERS["AdamW"]
    sharded = load_path(parse(implementation).path)(groups_of(modules[0]), optimizer_cls, **kwargs)

    def decay(optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5

    compare(modules, (sharded, optimizer_cls(groups_of(modules[1]), **kwargs)), decay)


@on_two_and_on_four_ranks
def test_added_group(device, implementation):
    """A group that is added after a step."""
    modules = copies(Odd, device)
    optimizer_cls, kwargs = OPTIMIZERS["SGD"]
    first, later = zip(*(groups_of(module) for module in modules), strict=True)
    optimizers = (
        load_path(parse(implementation).path)([first[0]], optimizer_cls, **kwargs),
        optimizer_cls([first[1]], **kwargs),
    )
    compare(modules, optimizers, steps=1)
    for optimizer, group in zip(optimizers, later, strict=True):
        optimizer.add_param_group(group)
    compare(modules, optimizers)


class Watched(torch.optim.AdamW):
    """Knows all of its kind, each of which may have a part of the state."""

    made = ()

    def __init__(self, *arguments, **kwargs):
        super().__init__(*arguments, **kwargs)
        type(self).made += (self,)


@on_two_and_on_four_ranks
def test_state_is_shared_out(device, implementation):
    """No rank has the state of all parameters, and all ranks together have each once."""
    Watched.made = ()
    module, alone = (make_model("transformer", seed=0, device=device) for _ in range(2))
    sharded = load_path(parse(implementation).path)(module.parameters(), Watched, lr=0.1)
    held = []
    for model, optimizer in ((module, sharded), (alone, torch.optim.AdamW(alone.parameters()))):
        set_gradients(model, 0)
        optimizer.step()
        watched = {id(each): each for each in Watched.made}.values() if model is module else [optimizer]
        states = {id(state): state for each in watched for state in each.state.values()}
        held.append(
            sum(x.numel() for state in states.values() for x in state.values() if torch.is_tensor(x) and x.dim())
        )
    mine, whole = held
    everyones = torch.tensor(mine, device=device)
    dist.all_reduce(everyones)
    assert everyones == whole, f"all ranks together hold {everyones / whole:.3g} times the state"
    assert mine < 0.9 * whole, f"rank {dist.get_rank()} holds {mine / whole:.3g} of the state"
