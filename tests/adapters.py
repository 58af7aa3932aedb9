"""Adapters for the course's tests: the names that its test suite imports, each one line to this project's code."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from cs336_systems.attention import TiledFlashAttention
from cs336_systems.parallel.data_parallel import BucketedDataParallel, DataParallel, OverlappedDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer


def get_flashattention_autograd_function_pytorch() -> type[torch.autograd.Function]:
    """FlashAttention-2 in tiled PyTorch: apply(q, k, v, is_causal) on [batch, sequence, d]."""
    return TiledFlashAttention


def get_flashattention_autograd_function_triton() -> type[torch.autograd.Function]:
    """FlashAttention-2 in Triton: apply(q, k, v, is_causal) on [batch, sequence, d]. Needs Triton and a GPU."""
    from cs336_systems.attention.triton_attention import TritonFlashAttention

    return TritonFlashAttention


def get_ddp_individual_parameters(module: torch.nn.Module) -> DataParallel:
    """A data-parallel wrapper that starts an all-reduce for each parameter during the backward pass."""
    return OverlappedDataParallel(module)


def ddp_individual_parameters_on_after_backward(ddp_model: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Called between the backward pass and the optimizer's step."""
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module: torch.nn.Module, bucket_size_mb: float) -> DataParallel:
    """A data-parallel wrapper that starts an all-reduce for each bucket of gradients during the backward pass."""
    return BucketedDataParallel(module, bucket_size_mb)


def ddp_bucketed_on_after_backward(ddp_model: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Called between the backward pass and the optimizer's step."""
    ddp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Called before a step: there is nothing to do."""


def get_ddp(module: torch.nn.Module) -> DataParallel:
    """The 2026 edition's name for the wrapper that communicates during the backward pass."""
    return get_ddp_individual_parameters(module)


def ddp_on_after_backward(ddp_model: DataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Called between the backward pass and the optimizer's step."""
    ddp_model.finish_gradient_synchronization()


def get_sharded_optimizer(
    params: ParamsT, optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any
) -> torch.optim.Optimizer:
    """An optimizer with sharded state, in which each rank updates its own parameters."""
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module: torch.nn.Module, compute_dtype: torch.dtype | None = None) -> FullyShardedDataParallel:
    """A wrapper that shards the weights of all Linear and Embedding layers."""
    return FullyShardedDataParallel(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: FullyShardedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Called between the backward pass and the optimizer's step."""
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model: FullyShardedDataParallel) -> dict[str, torch.Tensor]:
    """All parameters, whole, by their names in the module."""
    return fsdp_model.gather_full_parameters()
