"""Checks that a model can be sharded."""

import torch
from torch import nn

from cs336_systems.parallel.ownership import check_separate
from cs336_systems.parallel.replicas import check_in_memory

OWN_DTYPE = (nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.PReLU)
"""PyTorch modules that compute with their own parameters and reject inputs of another dtype."""


def check(module: nn.Module, compute_dtype: torch.dtype | None) -> None:
    """Raise a ValueError if a module cannot be sharded with these arguments."""
    if not (compute_dtype is None or (isinstance(compute_dtype, torch.dtype) and compute_dtype.is_floating_point)):
        raise ValueError(f"compute_dtype is {compute_dtype!r}; allowed: floating-point dtypes, and None")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError("the module has no parameter that requires a gradient: there is nothing to synchronize")
    if module._compiled_call_impl is not None:
        raise ValueError(
            "the module was compiled in place; allowed: compiling its parts in place, or torch.compile(module)"
        )
    for name, part in module.named_modules():
        check_part(name or "the module", part, compute_dtype)
    named = [*module.named_parameters(), *module.named_buffers()]
    check_in_memory(named)
    check_separate(list(module.named_parameters()))


def check_part(name: str, part: nn.Module, compute_dtype: torch.dtype | None) -> None:
    """Raise a ValueError if a part would compute something else, or fail, when it is sharded."""
    if isinstance(part, nn.Embedding) and (part.sparse or part.max_norm is not None):
        raise ValueError(
            f"{name} is an embedding with sparse={part.sparse} and max_norm={part.max_norm}; "
            "allowed: sparse=False and max_norm=None"
        )
    dtypes = {parameter.dtype for parameter in part.parameters(recurse=False)}
    if compute_dtype is not None and isinstance(part, OWN_DTYPE) and dtypes - {compute_dtype}:
        raise ValueError(
            f"{name} is a {type(part).__name__}, which a compute_dtype of {compute_dtype} does not cast; allowed: "
            "compute_dtype=None with torch.autocast"
        )
