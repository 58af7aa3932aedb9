"""Functions that a GPU computes differently from PyTorch's meta device: attention, dropout, norms, and autocast.

On the meta device operators have shapes but no data, and use the general implementation. A GPU has special kernels,
which keep other tensors for the backward pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

LOWER = (
    "linear", "matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv", "addmm", "addmv", "addbmm", "baddbmm",
    "bilinear", "einsum", "chain_matmul", "prelu", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "scaled_dot_product_attention",
)  # fmt: skip
"""Functions that autocast computes in bf16 (PyTorch's "CUDA Ops that can autocast to float16", of which bf16's is the
same list)."""
UPPER = (
    "softmax", "log_softmax", "layer_norm", "group_norm", "pow", "__pow__", "__rpow__", "square", "rsqrt", "reciprocal",
    "exp", "expm1", "log", "log10", "log1p", "log2", "logsumexp", "norm", "cumsum", "cumprod", "sum", "prod",
    "softplus", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "cosine_similarity",
    "binary_cross_entropy_with_logits", "kl_div", "cdist",
)  # fmt: skip
"""Functions that it computes in fp32."""


class AsOnGpu(TorchFunctionMode):
    """Makes a module on the meta device compute like on a GPU."""

    def __init__(self, *, autocast: bool = False, on_copy: Callable[[Tensor], None] = lambda copy: None):
        """`autocast`: whether to bf16; `on_copy` is called with each bf16 copy of a weight."""
        super().__init__()
        self.autocast = autocast
        self._on_copy = on_copy
        self._copies: dict[Tensor, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute one function of PyTorch."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.autocast and name in LOWER:
            args, kwargs = tree_map(self._lowered, (args, kwargs))
        elif self.autocast and name in UPPER:
            args, kwargs = tree_map(_raised, (args, kwargs))
        if name == "cross_entropy" and self.autocast:
            return _autocast_cross_entropy(*args, **kwargs)
        return KERNELS.get(name, func)(*args, **kwargs)

    def forget_copies(self) -> None:
        """Drop the copies of weights, as autocast does at the end of its region."""
        self._copies.clear()

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.bfloat16()
        if value not in self._copies:
            self._copies[value] = value.bfloat16()
            self._on_copy(self._copies[value])
        return self._copies[value]


def _raised(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def _autocast_cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    """Log-probabilities in the logits' dtype, which the loss then casts."""
    if target.is_floating_point() or options.pop("label_smoothing", 0.0):
        return functional.cross_entropy(logits.float(), target)
    return functional.nll_loss(functional.log_softmax(logits, 1).float(), target, **options)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention in half precision without a mask; else the memory-efficient kernel, or matmuls."""
    if query.dtype != torch.float32 and attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        by_matmuls = functional.scaled_dot_product_attention
        return by_matmuls(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """A mask of one byte per element."""
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """One kernel, unless the weight has another dtype than the input."""
    if weight is None or weight.dtype != input.dtype:
        return torch.rms_norm(input, normalized_shape, weight, eps)
    return _RmsNorm.apply(input, weight)


class _RmsNorm(torch.autograd.Function):
    """PyTorch's fused kernel, which keeps its input and one number per row; it does not exist on the meta device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[: -weight.dim()], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "rms_norm": _rms_norm,
}
"""Functions with a special kernel on a GPU."""
