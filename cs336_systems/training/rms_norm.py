"""Residual addition and RMSNorm in one pass over memory."""

import torch
from torch import Tensor

from cs336_systems.training.dispatch import HAS_TRITON, check_dtype, check_whole, runs_kernels, wide_dtype

if HAS_TRITON:
    from cs336_systems.training.triton_rms_norm import AddRMSNorm


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """Add to the residual stream and normalize the sum: (x + delta, rms_norm(x + delta) * weight).

    On a GPU, one Triton kernel reads x and delta and writes both results; another reads both gradients and the sum, and
    writes the gradient of x, which is also delta's. Statistics and the weight's gradient are computed in fp32, in a
    fixed order for each GPU model, so results are bitwise reproducible. The sum is rounded to its dtype before it is
    normalized.

    Args:
        x: residual stream, [..., d_model], bf16, fp16 or fp32.
        delta: the previous sublayer's output, which is added to x, same shape; None before the first sublayer.
        weight: [d_model].
        eps: added to the mean square.

    Returns:
        The sum and the normalized sum. The sum has the common dtype of x and delta, or is x itself if delta is None;
        the normalized sum has the same dtype or, under autocast, autocast's.

    Raises:
        ValueError: shapes do not match, x is not floating-point, or the weight is sharded.

    Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
    """
    _check(x, delta, weight)
    device = x.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    sum_dtype = x.dtype if delta is None else torch.promote_types(x.dtype, delta.dtype)
    dtype = torch.get_autocast_dtype(device) if autocast else sum_dtype
    if runs_kernels(x):
        total, normed = AddRMSNorm.apply(x, delta, weight, eps, dtype)
        return total, normed
    total = x if delta is None else x + delta
    wide = total.to(wide_dtype(total))
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return total, (wide * inverse_rms * weight).to(dtype)


def _check(x: Tensor, delta: Tensor | None, weight: Tensor) -> None:
    check_dtype("x", x)
    if delta is not None and delta.shape != x.shape:
        raise ValueError(f"x and delta must share a shape, got {list(x.shape)} and {list(delta.shape)}.")
    check_whole("add_rms_norm", x, weight)
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must be [d_model], got {list(weight.shape)} for x of shape {list(x.shape)}.")
