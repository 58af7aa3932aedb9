"""Adapters of the handout's tests, for the right implementation in each family."""

import torch
from torch import Tensor, nn


def get_flashattention_autograd_function_pytorch() -> type:
    """Make FlashAttention-2 in PyTorch."""
    from attention import FlashAttention

    return FlashAttention


def get_ddp(module: nn.Module) -> nn.Module:
    """Wrap a module whose gradients are averaged."""
    from ddp import DDP

    return DDP(module)


def ddp_on_after_backward(ddp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Wait for the gradients."""
    ddp_model.finish_gradient_synchronization()


def get_sharded_optimizer(params: object, optimizer_cls: type, **kwargs: object) -> torch.optim.Optimizer:
    """Make an optimizer whose state is shared among ranks."""
    from sharded_optimizer import ShardedOptimizer

    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    """Wrap a module whose weights are shared among ranks."""
    from fsdp import FSDP

    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Average the gradients of replicated parameters."""
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model: nn.Module) -> dict[str, Tensor]:
    """Gather all weights by name."""
    return fsdp_model.gather_full_parameters()
