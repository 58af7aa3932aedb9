"""Builders of the contenders of the experiment `flash`: from a cell to a function of q, k and v.

All functions accept [batch, heads, sequence, d] each, and return the output in the same shape.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cs336_systems.adapters import Adapters
from cs336_systems.attention import TiledFlashAttention, flash_attention, plain_attention
from cs336_systems.benchmarks.comparison.exact_attention import AttentionCall
from cs336_systems.benchmarks.runner import require_kernels
from cs336_systems.experiments.flash import Flash
from cs336_systems.implementations import load_path
from cs336_systems.measure.memory import Unavailable


def build(cell: Flash) -> AttentionCall:
    """Build the implementation that a cell names; Unavailable if it cannot run these inputs, or is not installed."""
    contender = cell.contender
    path = contender.builder
    call = _masked(Adapters(path).attention(), cell) if contender.own else load_path(path)(cell)
    return torch.compile(call, dynamic=False, mode=contender.compiler_mode) if cell.compiled_call else call


def _masked(call: Callable[..., Tensor], cell: Flash) -> AttentionCall:
    """Bind is_causal, by position, as autograd functions require."""
    causal = cell.causal
    return lambda q, k, v: call(q, k, v, causal)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def ours(cell: Flash) -> AttentionCall:
    """This project's fastest kernels for the inputs; tiled PyTorch on a CPU."""
    require_kernels(_device())
    return functools.partial(flash_attention, is_causal=cell.causal)


def compiled_backward(cell: Flash) -> AttentionCall:
    """This project's forward kernel, with the backward pass in compiled PyTorch."""
    require_kernels(_device())
    from cs336_systems.attention.triton_attention import TritonForwardCompiledBackward

    return _masked(TritonForwardCompiledBackward.apply, cell)


def tiled(cell: Flash) -> AttentionCall:
    """FlashAttention-2 in tiled PyTorch."""
    return _masked(TiledFlashAttention.apply, cell)


def plain(cell: Flash) -> AttentionCall:
    """Plain attention, with the score matrix in memory."""
    return functools.partial(plain_attention, is_causal=cell.causal)


def sdpa(cell: Flash) -> AttentionCall:
    """PyTorch's scaled_dot_product_attention; `measure` chooses the backend."""
    call = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=cell.causal)
    if not cell.compiled_call:
        return call
    backend = getattr(SDPBackend, cell.contender.backend)

    def with_backend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # It is part of a compiled graph; otherwise the compiler's cache would return another backend's graph.
        with sdpa_kernel(backend):
            return call(q, k, v)

    return with_backend


def flex(cell: Flash) -> AttentionCall:
    """FlexAttention, PyTorch's generator of attention kernels."""
    compiled = torch.compile(flex_attention, dynamic=False, mode=cell.contender.compiler_mode)
    if not cell.causal:
        return lambda q, k, v: compiled(q, k, v)
    mask = create_block_mask(
        lambda _batch, _head, query, key: query >= key, None, None, cell.sequence, cell.sequence, device="cuda"
    )
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def flash_attention_4(cell: Flash) -> AttentionCall:
    """FlashAttention-4, from the package flash-attn-4."""
    if find_spec("flash_attn") is None:
        raise Unavailable("the package flash-attn-4 is not installed")
    from flash_attn.cute import flash_attn_func

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Its layout is [batch, sequence, heads, d].
        o = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=cell.causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return call
