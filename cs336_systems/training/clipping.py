"""Clipping by the global norm without a pass of its own."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def clip_scale(
    parameters: Iterable[Tensor], max_norm: float, *, gradients: Mapping[Any, Tensor] | None = None
) -> Tensor:
    """The factor that brings the global norm of the gradients to at most max_norm, without waiting for the device.

    `MasterAdamW.step` multiplies it into the gradients where it reads them, which saves the pass that
    torch.nn.utils.clip_grad_norm_ takes. The formula is the same: min(1, max_norm / (norm + 1e-6)).

    Args:
        parameters: those without a gradient are skipped; a parameter that is listed twice counts once.
        max_norm: the largest Euclidean norm of all gradients together.
        gradients: those that replace `.grad`, as in `MasterAdamW.step`.

    Returns:
        one fp32 number on the gradients' device; NaN if the norm is.

    Raises:
        ValueError: max_norm is not positive, or no parameter has a gradient.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}; allowed: numbers above 0")
    given = gradients or {}
    found = [given.get(p, p.grad) for p in dict.fromkeys(parameters)]
    present = [gradient for gradient in found if gradient is not None]
    if not present:
        raise ValueError("no parameter has a gradient; call clip_scale after the backward pass")
    norms = torch._foreach_norm(present, 2, torch.float32)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)
