"""Implementations such as a user may name in the configuration: subtly wrong ones, and an FSDP that is right."""

import torch
import torch.distributed as dist
from torch import nn

from examples.my_systems.ddp import DDP
from examples.my_systems.sharded_optimizer import ShardedOptimizer


class ForgetfulDDP(DDP):
    """The last gradient stays at home."""

    def reduce(self, parameter):
        if parameter is not next(self.module.parameters()):
            super().reduce(parameter)


class RoundingDDP(DDP):
    """Sends in a dtype other than the gradients'."""

    def reduce(self, parameter):
        rounded = parameter.grad.bfloat16()
        dist.all_reduce(rounded)
        parameter.grad = rounded.float() / dist.get_world_size()


class RaisingDDP(DDP):
    """Has a bug that shows on one rank only."""

    def forward(self, *inputs):
        if dist.get_rank() == 1:
            raise TypeError("rank 1 has no\nbuckets")
        return super().forward(*inputs)


class ElsewhereDDP(DDP):
    """Cannot work here."""

    def __init__(self, module):
        raise NotImplementedError("it needs a GPU")


class OverflowingDDP(DDP):
    """Has a buffer for 2000 numbers, and leaves gradients of more as they are."""

    def reduce(self, parameter):
        if parameter.numel() <= 2000:
            super().reduce(parameter)


class LonelyOptimizer(ShardedOptimizer):
    """Keeps its updates to itself."""

    def share(self):
        pass


class IdleOptimizer(ShardedOptimizer):
    """Updates nothing."""

    def step(self):
        pass


class StatelessOptimizer(ShardedOptimizer):
    """Forgets its moments after each step."""

    def step(self):
        super().step()
        self.own.state.clear()


class SlowOptimizer(ShardedOptimizer):
    """Halves the learning rate."""

    def __init__(self, params, optimizer_cls, lr, **kwargs):
        super().__init__(params, optimizer_cls, lr=lr / 2, **kwargs)


def WholeOptimizer(params, optimizer_cls, **kwargs):
    """Shares nothing."""
    return optimizer_cls(params, **kwargs)


class FSDP(nn.Module):
    """Each rank keeps a part of every weight; they are gathered before a forward pass."""

    def __init__(self, module, compute_dtype=None):
        super().__init__()
        if compute_dtype is not None:
            raise NotImplementedError("it computes in fp32 only")
        self.hidden = [module]  # no submodule: the parameters are the shards
        self.whole = dict(module.named_parameters())
        self.shards = nn.ParameterList(self.part(weight.data).clone() for weight in self.whole.values())

    def part(self, whole):
        ranks = dist.get_world_size()
        padded = torch.cat([whole.flatten(), whole.new_zeros(-whole.numel() % ranks)])
        return padded.chunk(ranks)[dist.get_rank()]

    def gather_full_params(self):
        gathered = {}
        for (name, weight), shard in zip(self.whole.items(), self.shards, strict=True):
            flat = shard.new_empty(len(shard) * dist.get_world_size())
            dist.all_gather_into_tensor(flat, shard.data)
            gathered[name] = flat[: weight.numel()].view_as(weight)
        return gathered

    def forward(self, *inputs):
        for name, weight in self.gather_full_params().items():
            self.whole[name].data = weight
        return self.hidden[0](*inputs)

    def finish_gradient_synchronization(self):
        for weight, shard in zip(self.whole.values(), self.shards, strict=True):
            dist.all_reduce(weight.grad)
            shard.grad = self.part(weight.grad / dist.get_world_size())
            weight.grad = None


class DividingFSDP(FSDP):
    """Is for rows that ranks divide."""

    def part(self, whole):
        assert len(whole) % dist.get_world_size() == 0
        return super().part(whole)


class StaleFSDP(FSDP):
    """Gathers its weights once."""

    def forward(self, *inputs):
        if not hasattr(self, "gathered"):
            self.gathered = super().gather_full_params()
        for name, weight in self.gathered.items():
            self.whole[name].data = weight
        return self.hidden[0](*inputs)


class ShapelessFSDP(FSDP):
    """Gives back its weights without their shapes."""

    def gather_full_params(self):
        return {name: weight.flatten() for name, weight in super().gather_full_params().items()}

    def forward(self, *inputs):
        for name, weight in super().gather_full_params().items():
            self.whole[name].data = weight
        return self.hidden[0](*inputs)
