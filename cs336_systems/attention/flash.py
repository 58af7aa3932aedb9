"""flash_attention, the public attention function: any shape, three dtypes, any device."""

import math
import warnings
from functools import cache
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from cs336_systems.attention.autocast import autocast_inputs
from cs336_systems.attention.chip import HAS_TRITON, kernel_obstacle
from cs336_systems.attention.differentiation import backward_by, refuse_forward_mode, save_for_backward
from cs336_systems.attention.operators import Function, define_operators, softmax_scale
from cs336_systems.attention.options import DTYPES, OPEN, Options, parse_options, shown
from cs336_systems.attention.tiled import tiled_backward, tiled_forward

GpuFlashAttention: type[torch.autograd.Function] | None = None  # as on macOS, on Windows and with ROCm
IMPLEMENTATIONS: dict[str, tuple[Function, Function]] = {
    "CompositeExplicitAutograd": (tiled_forward, tiled_backward)
}  # on any device except those below
if HAS_TRITON:
    from cs336_systems.attention.gpu_attention import GpuFlashAttention, attention_backward, attention_forward

    IMPLEMENTATIONS["CUDA"] = (attention_forward, attention_backward)
define_operators("attention", IMPLEMENTATIONS)

OPERATORS = torch.ops.cs336_systems
MAX_HEAD_DIM = 256
OTHER_NAMES = {
    "causal": "is_causal",
    "softmax_scale": "scale",
    "return_softmax_lse": "return_lse",
    "learnable_sink": "sinks",
    "s_aux": "sinks",
}
"""FlashAttention's names for arguments, and ours."""
UNSUPPORTED = {
    "attn_mask": (None,),
    "bias": (None,),
    "alibi_slopes": (None,),
    "dropout_p": (0,),
}
"""Unsupported arguments of SDPA and FlashAttention, each with the values that have no effect."""


class Keywords(TypedDict, total=False):
    """Keyword arguments that flash_attention and flash_attention_varlen share, except return_lse."""

    scale: float | None
    enable_gqa: bool
    window_size: tuple[int, int] | None
    softcap: float | None
    sinks: Tensor | None
    deterministic: bool


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = ...,
    *,
    return_lse: Literal[False] = ...,
    **more: Unpack[Keywords],
) -> Tensor: ...


@overload
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = ..., *, return_lse: Literal[True], **more: Unpack[Keywords]
) -> tuple[Tensor, Tensor]: ...


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    **unsupported: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute softmax(scale q kᵀ) v without the score matrix: FlashAttention-2, memory linear in the sequence length.

    NVIDIA GPUs run Triton kernels, or on Hopper Gluon kernels for bf16 and fp16. GPUs before Ampere run PyTorch's
    scaled_dot_product_attention (SDPA), or with return_lse tiled PyTorch. Everything else (CPU, ROCm, MPS, XPU, no
    Triton) runs tiled PyTorch, with one warning on a GPU. fp32 inputs are computed to fp32 accuracy. Results are
    bitwise reproducible, except the gradient of q on Hopper, which needs deterministic=True or
    torch.use_deterministic_algorithms(True) and then takes longer. On Hopper, windows without a causal mask also run
    the Triton kernels. Under autocast, inputs are cast as in SDPA. It works under torch.compile, torch.func.vmap and,
    not compiled, torch.func.grad. If all scores of a query are -inf, or it sees no key, its output is zero, as in SDPA,
    and its log-sum-exp is -inf. flash_attention_varlen computes attention within packed documents.

    Not supported, and rejected with an error: other masks, biases, dropout, fp64, d > 256, sinks under vmap,
    forward-mode derivatives and second derivatives. With n_queries != n_keys the causal mask and windows are aligned to
    the top left, like SDPA's mask; FlashAttention's alignment to the bottom right is not supported.

    Args:
        q: queries, [..., n_queries, d] with d <= 256, bf16, fp16 or fp32, any strides.
        k: keys, [..., n_keys, d].
        v: values, [..., n_keys, d_v] with d_v <= 256. If d_v differs from d, the narrower tensors are padded with
            zeros, at the cost of the larger dimension.
        is_causal: query i sees keys j <= i only, even if n_queries and n_keys differ.
        scale: positive factor of the scores; 1 / √d if None.
        enable_gqa: grouped-query attention: k and v may have fewer heads (the axis before n_keys) than q, each shared
            by neighbouring heads of q. They are not copied; their gradients are written per head of q, then summed.
        window_size: (left, right): query i sees only keys i - left to i + right; -1 leaves a side unlimited. With
            is_causal, right is treated as 0. Tiles of keys that no query of a tile sees are skipped.
        softcap: scaled scores s become softcap · tanh(s / softcap), as in Gemma 2; 0 or None for none.
        sinks: [heads], bf16, fp16 or fp32: each head's extra score for every query, with a value of zero, as in
            gpt-oss. Sinks are part of the log-sum-exp, and have gradients.
        deterministic: make the backward pass bitwise reproducible, too.
        return_lse: also return the log-sum-exp of the scores and sinks. It is differentiable.

    Returns:
        [..., n_queries, d_v], in the dtype of the inputs (under autocast, in the autocast dtype); with return_lse, also
        the log-sum-exp, [..., n_queries] fp32, natural logarithm.

    Raises:
        TypeError: an argument is unknown, or has the wrong type.
        ValueError: shapes, dtypes or devices do not match, or an argument requests something unsupported.
        NotImplementedError: a derivative is not supported.

    Source: Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning".
    """
    if unsupported:
        _refuse(unsupported)
    q, k, v = autocast_inputs(q, k, v)
    check(q, k, v, is_causal, scale, enable_gqa)
    options = Options(is_causal, scale)
    if window_size is not None or softcap or sinks is not None or deterministic:
        heads = q.shape[-3] if q.dim() > 2 else None
        options = parse_options(options, q, window_size, softcap, sinks, deterministic, heads)
    o, lse = attend(q, k, v, options, enable_gqa, return_lse)
    return (o, lse) if return_lse else o


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, enable_gqa: bool, return_lse: bool
) -> tuple[Tensor, Tensor]:
    """Compute the output and L of checked inputs; L is valid only if requested."""
    sinks = options.sinks
    if options.window_right == 0:  # a causal mask by another name, which more kernels have
        options = options._replace(is_causal=True, window_right=OPEN)
    if q.numel() == 0:
        factor = k.sum() * v.sum() * (1 if sinks is None else sinks.sum())
        o = (q[..., :1] * factor).expand(*q.shape[:-1], v.shape[-1])  # empty, and differentiable
        return o, o.sum(-1, dtype=torch.float32)
    axes = q.dim()
    # The operators accept one batch axis and at most one axis of heads, which grouped queries and sinks require.
    needs_heads = enable_gqa or sinks is not None
    fits = (axes == 4 or (axes == 3 and not needs_heads)) and q.shape[-1] == v.shape[-1]
    return (_attend if fits else _attend_reshaped)(q, k, v, options, return_lse)


def _attend_reshaped(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool) -> tuple[Tensor, Tensor]:
    """Call _attend for any leading axes, and for a v with another width than q and k."""
    rows, d, d_v = q.shape[:-1], q.shape[-1], v.shape[-1]
    if d != d_v:
        options = options._replace(scale=softmax_scale(d, options.scale))
        q, k, v = (torch.nn.functional.pad(x, (0, max(d, d_v) - x.shape[-1])) for x in (q, k, v))
    q, k, v = (x[None] if x.dim() < 4 else x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    o, lse = _attend(q, k, v, options, return_lse)
    return o[..., :d_v].reshape(*rows, d_v), lse.reshape(rows) if return_lse else o


def _attend(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool) -> tuple[Tensor, Tensor]:
    """Compute the output and L by the route with the least host overhead; L is valid only if requested."""
    bare = options.only_mask and not return_lse
    if bare and q.is_cuda and _runs_sdpa(q.device):
        o = _sdpa(q, k, v, options)
        return o, o
    if torch.compiler.is_compiling():
        if torch.autograd.forward_ad._current_level >= 0:
            refuse_forward_mode(None)
        o, lse = OPERATORS.attention_forward(q, k, v, *options)
        return o, lse
    if bare and not torch._C._are_functorch_transforms_active() and q.is_cuda and GpuFlashAttention is not None:
        o = GpuFlashAttention.apply(q, k, v, options.is_causal, options.scale)
        return o, o
    if GpuFlashAttention is None or q.device.type in ("mps", "xpu"):
        _warn_of_tiled_pytorch(q.device)
    o, lse = FlashAttention.apply(q, k, v, *options)
    return o, lse


def _runs_sdpa(device: torch.device) -> bool:
    """Whether PyTorch's kernels replace ours on a GPU: before Ampere, where Triton uses no tensor cores."""
    return HAS_TRITON and bool(kernel_obstacle(device))


# The attribute that torch.compiler.assume_constant_result sets; that function imports the compiler, which takes a
# second that most processes can save. The compiler looks for it only on plain functions, and warns about cached ones.
_runs_sdpa._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    if k.shape[:-2] != q.shape[:-2]:  # the memory-efficient kernels need as many heads of keys
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=options.is_causal, scale=options.scale)


@cache
def _warn_of_tiled_pytorch(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        reason = kernel_obstacle(device)
        warnings.warn(f"flash_attention runs in plain PyTorch, tile by tile, without kernels: {reason}", stacklevel=4)


class FlashAttention(torch.autograd.Function):
    """The operators as an autograd function for torch.func: apply(q, k, v, *options) to o and L."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        """Call the forward operator."""
        o, lse = OPERATORS.attention_forward(q, k, v, *options)
        return o, lse

    setup_context = staticmethod(save_for_backward)
    backward = staticmethod(backward_by(OPERATORS.attention_backward))
    jvp = staticmethod(refuse_forward_mode)


def _refuse(arguments: dict[str, object]) -> None:
    """Raise an error for unsupported arguments, unless their values have no effect."""
    for name, value in arguments.items():
        if name in OTHER_NAMES:
            raise TypeError(f"flash_attention has no argument {name}: it is called {OTHER_NAMES[name]} here.")
        if name.startswith("cu_seqlens"):
            raise TypeError(
                f"flash_attention has no argument {name}: call flash_attention_varlen for packed documents."
            )
        if name not in UNSUPPORTED:
            raise TypeError(f"flash_attention has no argument {name}.")
        if not any(value is x or (not isinstance(value, Tensor) and value == x) for x in UNSUPPORTED[name]):
            raise ValueError(f"flash_attention does not support {name}, got {shown(value)}; leave it out.")


def check(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, enable_gqa: bool) -> None:
    """Raise an error for inputs that are not supported."""
    dtype, device = q.dtype, q.device
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if is_causal is not True and is_causal is not False:
        raise TypeError(f"is_causal must be True or False, got {shown(is_causal)}.")
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        raise ValueError(f"scale must be a positive number or None, got {shown(scale)}.")
    if dtype not in DTYPES:
        raise ValueError(f"flash_attention accepts bfloat16, float16 or float32, got q of {dtype}.")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != dtype:
            raise ValueError(f"q, k and v must share a dtype, got q of {dtype} and {name} of {x.dtype}.")
        if x.device != device:
            raise ValueError(f"q, k and v must be on one device, got q on {device} and {name} on {x.device}.")
    if len(q_shape) < 2:
        raise ValueError(f"q must be [..., n_queries, d], got shape {list(q_shape)}.")
    if k_shape != v_shape and k_shape[:-1] != v_shape[:-1]:
        raise ValueError(f"k and v may differ only in the last axis, got {list(k_shape)} and {list(v_shape)}.")
    if k_shape[:-2] != q_shape[:-2] or k_shape[-1:] != q_shape[-1:] or len(k_shape) != len(q_shape):
        _check_groups(q_shape, k_shape, enable_gqa)
    if k_shape[-2] == 0:
        raise ValueError(f"Attention needs at least one key, got k of shape {list(k_shape)}.")
    for d in (q_shape[-1], v_shape[-1]):
        if not 1 <= d <= MAX_HEAD_DIM:
            raise ValueError(f"The head dimension must be between 1 and {MAX_HEAD_DIM}, got {d}.")


def _check_groups(q_shape: torch.Size, k_shape: torch.Size, enable_gqa: bool) -> None:
    """Check the shapes of q and k for grouped-query attention: they may also differ in the number of heads."""
    shapes = f"got q {list(q_shape)} and k {list(k_shape)}"
    alike = len(q_shape) == len(k_shape) > 2 and q_shape[:-3] == k_shape[:-3] and q_shape[-1] == k_shape[-1]
    if not alike:
        raise ValueError(
            f"q and k may differ only in the second-to-last axis and, with enable_gqa, the number of heads, {shapes}."
        )
    if not enable_gqa:
        raise ValueError(f"q and k may differ in the number of heads only with enable_gqa=True, {shapes}.")
    if k_shape[-3] == 0 or q_shape[-3] % k_shape[-3]:
        raise ValueError(f"The number of heads of q must be a multiple of that of k and v, {shapes}.")
