"""Dispatch between the Hopper and the Triton kernels, as functions and as an autograd function.

On a GPU that neither supports, these functions run tiled PyTorch; flash_attention itself calls SDPA where possible.

Each call chooses, outside any compiled graph. All kernels save the same L, so the forward and the backward pass may use
different ones.
"""

import warnings
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

from cs336_systems.attention import triton_launch
from cs336_systems.attention.chip import chip_of, triton_obstacle
from cs336_systems.attention.differentiation import once, refuse_forward_mode
from cs336_systems.attention.launcher import CACHE_SIZE, on_device
from cs336_systems.attention.options import Options
from cs336_systems.attention.tiled import tiled_backward, tiled_forward

TESTED_TRITON = ("3.6", "3.7", "3.8", "3.9")
"""Versions of Triton that the Hopper kernels support: Gluon is experimental. The tests have passed on a GPU with 3.6,
3.7 and 3.9; with 3.8 the kernels compile without spills."""


TILED = SimpleNamespace(attention_forward=tiled_forward, attention_backward=tiled_backward)


@lru_cache(CACHE_SIZE)
def _kernels(
    device: int,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    documents: int | None,
    never_hopper: bool,
) -> Any:
    """Choose the module with attention_forward and attention_backward for these inputs."""
    if triton_obstacle(chip_of(device)):
        return TILED
    if never_hopper or hopper_obstacle(device, dtype, q_shape, k_shape, documents):
        return triton_launch
    from cs336_systems.attention.hopper import launch

    return launch


def _choose(q: Tensor, k: Tensor, options: Options) -> Any:
    """Choose a module as _kernels does."""
    k_shape, documents = k.shape, options.documents
    if options.window_left >= 0 and documents is None:  # as fast as with fewer keys
        k_shape = torch.Size((*k.shape[:-2], min(k.shape[-2], options.window_left + 1), k.shape[-1]))
    return _kernels(q.get_device(), q.dtype, q.shape, k_shape, documents, not _on_hopper(options))


def _on_hopper(options: Options) -> bool:
    """Whether the Hopper kernels have options: all but windows without a causal mask."""
    has_window = options.window_left >= 0 or options.window_right >= 0
    return options.is_causal or not has_window


def hopper_obstacle(
    device: int, dtype: torch.dtype, q_shape: torch.Size, k_shape: torch.Size, documents: int | None = None
) -> str:
    """Name the reason why the Hopper kernels do not run these inputs on a CUDA device; empty if they do.

    Warns once if the reason is the version of Triton.
    """
    if chip_of(device).capability != (9, 0):
        return "the GPU is not of compute capability 9.0"
    if ".".join(triton.__version__.split(".")[:2]) not in TESTED_TRITON:
        _warn_of_untested_triton()
        return f"they are not tested with Triton {triton.__version__}"
    from cs336_systems.attention.hopper import launch

    return launch.obstacle(dtype, q_shape, k_shape, documents)


@cache
def _warn_of_untested_triton() -> None:
    tested = f"{TESTED_TRITON[0]} to {TESTED_TRITON[-1]}"
    warnings.warn(
        f"flash_attention: the kernels for Hopper GPUs are tested with Triton {tested}, not with "
        f"{triton.__version__}; slower kernels run instead",
        stacklevel=2,
    )


@on_device
def attention_forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Compute the output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm.

    Args:
        q: queries, [batch, n_queries, d] or [batch, heads, n_queries, d].
        k: keys, with n_keys instead, and as many heads or fewer, each then shared by neighbouring heads of q.
        v: values, like k.
        options: see Options.
    """
    return _choose(q, k, options).attention_forward(q, k, v, options)


@on_device
def attention_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, grad_lse: Tensor | None, options: Options
) -> list[Tensor]:
    """Compute the gradients of q, k, v and sinks from the gradients of the output and of L, if given."""
    if torch.are_deterministic_algorithms_enabled():
        options = options._replace(deterministic=True)
    return _choose(q, k, options).attention_backward(grad_o, q, k, v, o, lse, grad_lse, options)


class GpuFlashAttention(torch.autograd.Function):
    """FlashAttention on a GPU, forward and backward: apply(q, k, v, is_causal=False, scale=None).

    The output is like q. An operator computes the same, but adds the dispatcher's overhead to each launch.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        """Compute the output; save q, k, v, the output and L, [..., n_queries], natural logarithm."""
        ctx.options = Options(is_causal, scale)
        o, lse = attention_forward(q, k, v, ctx.options)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Compute the gradients by recomputation from L."""
        q, k, v, o, lse = ctx.saved_tensors
        return *once(attention_backward, grad_o, q, k, v, o, lse, None, ctx.options), None, None

    jvp = staticmethod(refuse_forward_mode)
