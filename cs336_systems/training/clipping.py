"""Clipping by the global norm without an extra pass."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from cs336_systems.parallel.gradient_norm import gradient_norm


def clip_scale(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    gradients: Mapping[Any, Tensor] | None = None,
) -> Tensor:
    """Return the factor that reduces the gradients' global norm to at most max_norm, without waiting for the device.

    `MasterAdamW.step` applies this factor while it reads the gradients, which saves the extra pass of
    `torch.nn.utils.clip_grad_norm_`. The formula is the same: min(1, max_norm / (norm + 1e-6)).

    Args:
        parameters: one or several; those without a gradient are skipped, and one that is listed twice counts once. For
            DTensors, the norm covers the shards of all ranks, and all ranks call this.
        max_norm: maximum norm of all gradients together.
        norm_type: above 0, or `inf`; 2 is the Euclidean norm.
        gradients: used instead of `.grad`, as in `MasterAdamW.step`.

    Returns:
        one number on the first gradient's device, fp32 unless a gradient is float64; NaN if the norm is.

    Raises:
        ValueError: max_norm or norm_type is not positive, a gradient is sparse or a partial sum, or no parameter has a
            gradient.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}; allowed: numbers above 0")
    return scale_of(gradient_norm(parameters, norm_type, gradients=gradients), max_norm)


def scale_of(norm: Tensor, max_norm: float) -> Tensor:
    """The factor that brings a norm to at most max_norm."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)
