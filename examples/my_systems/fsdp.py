"""Fully sharded data parallelism, and a variant that never trains the rows left over after an even division."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Gather(torch.autograd.Function):
    """Gathers whole weights from all ranks' rows; the gradient of these rows is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        """[rows, ...] of each rank to [ranks x rows, ...]."""
        whole = rows.new_empty(dist.get_world_size() * len(rows), *rows.shape[1:])
        dist.all_gather_into_tensor(whole, rows.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Reduce-scatter the gradient: the reverse of forward."""
        ranks = dist.get_world_size()
        rows = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
        dist.reduce_scatter_tensor(rows, gradient.contiguous())
        return rows / ranks


class FSDP(nn.Module):
    """Right: a rank keeps its rows of each Linear and Embedding, and full weights only from forward to backward."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None):
        super().__init__()
        self.module, self.compute_dtype = module, compute_dtype
        self.lengths: dict[nn.Parameter, int] = {}
        named = dict(module.named_parameters())
        for parameter in named.values():
            dist.broadcast(parameter.data, src=0)
        shards: dict[nn.Parameter, nn.Parameter] = {}
        for layer in [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Embedding)]:
            whole = dict(layer.named_parameters(recurse=False))
            shards |= {parameter: self.shard(parameter) for parameter in whole.values() if parameter not in shards}
            for name, parameter in whole.items():
                delattr(layer, name)
                layer.register_parameter(f"{name}_rows", shards[parameter])
            rows = {name: shards[parameter] for name, parameter in whole.items()}
            layer.register_forward_pre_hook(partial(self.gather_for, rows))
        self.named = {name: shards.get(parameter, parameter) for name, parameter in named.items()}

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """This rank's rows of a parameter, padded with zeros to the same number on all ranks."""
        ranks = dist.get_world_size()
        filled = torch.cat([parameter.data, parameter.new_zeros(-len(parameter) % ranks, *parameter.shape[1:])])
        rows = nn.Parameter(filled.chunk(ranks)[dist.get_rank()].clone(), requires_grad=parameter.requires_grad)
        self.lengths[rows] = len(parameter)
        return rows

    def whole(self, rows: nn.Parameter, dtype: torch.dtype | None = None) -> Tensor:
        """A parameter from its rows on all ranks."""
        return Gather.apply(rows.to(dtype or rows.dtype))[: self.lengths[rows]]

    def gather_for(self, rows: dict[str, nn.Parameter], layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        """Give a layer its weights, and its input their dtype, before it runs."""
        for name, shard in rows.items():
            setattr(layer, name, self.whole(shard, self.compute_dtype))
        cast = self.compute_dtype is not None and inputs[0].is_floating_point()
        return (inputs[0].to(self.compute_dtype),) if cast else inputs

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the module's output."""
        return self.module(*arguments, **keywords)

    def finish_gradient_synchronization(self) -> None:
        """Average the gradients of replicated parameters, and free the whole weights."""
        for parameter in self.named.values():
            if parameter not in self.lengths and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        for layer in self.module.modules():
            for name in {"weight", "bias"} & vars(layer).keys():
                delattr(layer, name)

    @torch.no_grad()
    def gather_full_parameters(self) -> dict[str, Tensor]:
        """All full parameters by their names in the module."""
        return {name: self.whole(p) if p in self.lengths else p.data for name, p in self.named.items()}


class EvenFSDP(FSDP):
    """Wrong: the rows left over after dividing by the number of ranks are never trained."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None):
        self.left: dict[nn.Parameter, Tensor] = {}
        super().__init__(module, compute_dtype)

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """This rank's rows, without those left over."""
        even = len(parameter) - len(parameter) % dist.get_world_size()
        rows = super().shard(nn.Parameter(parameter.data[:even], requires_grad=parameter.requires_grad))
        self.left[rows] = parameter.data[even:].clone()
        return rows

    def whole(self, rows: nn.Parameter, dtype: torch.dtype | None = None) -> Tensor:
        """A parameter from its rows on all ranks and the rows left over."""
        return torch.cat([super().whole(rows, dtype), self.left[rows].to(dtype or rows.dtype)])
