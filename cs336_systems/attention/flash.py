"""The attention function for users: any shape, any of three dtypes, any device."""

from importlib.util import find_spec

import torch
from torch import Tensor

from cs336_systems.attention.tiled import TiledFlashAttention

GpuFlashAttention: type[torch.autograd.Function] | None = None  # as on macOS and Windows
if find_spec("triton") is not None:
    from cs336_systems.attention.gpu_attention import GpuFlashAttention

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256


def flash_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """softmax(q kᵀ / √d) v without the score matrix: FlashAttention-2, memory linear in the sequence.

    On a CUDA device this runs Triton kernels, with others for bf16 and fp16 on Hopper, elsewhere (or without Triton)
    tiled PyTorch. fp32 inputs are computed to fp32 accuracy. The same inputs give the same bits every time, but for the
    gradient of q on Hopper: torch.use_deterministic_algorithms(True) makes slower kernels compute that one alike too.
    Under autocast the inputs are cast, as scaled_dot_product_attention casts them.

    Args:
        q: queries, [..., n_queries, d] with d <= 256, bf16, fp16 or fp32, any strides.
        k: keys, [..., n_keys, d].
        v: values, [..., n_keys, d].
        is_causal: query i sees keys j <= i only, even if n_queries and n_keys differ.

    Returns:
        [..., n_queries, d], in the dtype of the inputs (under autocast, in the autocast dtype).

    Raises:
        ValueError: shapes, dtypes or devices do not match.

    Source: Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning".
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = (x.to(dtype) if x.dtype != dtype and x.is_floating_point() else x for x in (q, k, v))
    _check(q, k, v)
    function = GpuFlashAttention if q.is_cuda and GpuFlashAttention is not None else TiledFlashAttention
    if q.numel() == 0:
        return q * k.sum() * v.sum()  # empty, and differentiable
    leading = q.shape[:-2]
    if len(leading) not in (1, 2):
        # The kernels take one batch axis and at most one heads axis.
        q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    o = function.apply(q, k, v, is_causal)
    return o if len(leading) in (1, 2) else o.reshape(*leading, *o.shape[-2:])


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    dtype, device = q.dtype, q.device
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if dtype not in DTYPES:
        raise ValueError(f"flash_attention takes bfloat16, float16 or float32, got q of {dtype}.")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != dtype:
            raise ValueError(f"q, k and v must share a dtype, got q of {dtype} and {name} of {x.dtype}.")
        if x.device != device:
            raise ValueError(f"q, k and v must be on one device, got q on {device} and {name} on {x.device}.")
    if len(q_shape) < 2:
        raise ValueError(f"q must be [..., n_queries, d], got shape {list(q_shape)}.")
    if k_shape != v_shape:
        raise ValueError(f"k and v must have the same shape, got {list(k_shape)} and {list(v_shape)}.")
    if k_shape[:-2] != q_shape[:-2] or k_shape[-1:] != q_shape[-1:] or len(k_shape) != len(q_shape):
        shapes = f"got q {list(q_shape)} and k {list(k_shape)}"
        raise ValueError(f"q and k may differ in the second last axis only, {shapes}.")
    if k_shape[-2] == 0:
        raise ValueError(f"Attention needs at least one key, got k of shape {list(k_shape)}.")
    if not 1 <= q_shape[-1] <= MAX_HEAD_DIM:
        raise ValueError(f"The head dimension must lie between 1 and {MAX_HEAD_DIM}, got {q_shape[-1]}.")
