"""From tensors to kernel launches: shapes, strides, descriptors, output buffers.

All functions take q [batch, heads, n_queries, d] and k, v [batch, heads, n_keys, d], or the same without the heads
axis, in bf16, fp16 or fp32, with any strides. What follows from shapes and strides alone is worked out once per problem
and cached: a short sequence takes the device less time than its launch takes the host.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cs336_systems.attention.tile_config import (
    BackwardTiles,
    ForwardTiles,
    backward_group,
    backward_tiles,
    forward_group,
    forward_tiles,
)
from cs336_systems.attention.triton_backward import backward_kernel
from cs336_systems.attention.triton_backward_preprocess import preprocess_kernel
from cs336_systems.attention.triton_forward import forward_kernel

LOG2_E = math.log2(math.e)
ROUNDED_TO = 128  # n_queries is rounded up to a multiple of this in the buffer of L and D: any BLOCK_M divides it
PREPROCESS_BLOCK_M = 32
CACHE_SIZE = 4096  # problems; a bound for callers whose lengths keep changing
INTERPRETED = triton.knobs.runtime.interpret

Strides = tuple[tuple[int, ...], ...]
"""Of several tensors."""


class Launch:
    """kernel[(programs,)](*tensors, *scalars, *constexprs), with less work for the host from the second call on.

    Triton's own launch inspects some 40 arguments in Python to find the compiled kernel, which takes longer than a
    short kernel runs. Here the compiled kernel is kept. It is specialized for the scalars, the constexprs, the tensors'
    dtypes (so one Launch must always get tensors of the same dtypes) and for tensors that start at multiples of 16
    bytes; others go through Triton's own launch.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        scalars: tuple[float, ...],
        constexprs: tuple[int | str, ...],
        num_warps: int,
        num_stages: int,
        maxnreg: int | None = None,
    ):
        self.kernel = kernel
        self.grid = (programs, 1, 1)
        self.rest = (*scalars, *constexprs)
        self.options = {"num_warps": num_warps, "num_stages": num_stages}
        if maxnreg is not None:
            self.options["maxnreg"] = maxnreg
        self.compiled: dict[int, Callable[..., None]] = {}  # by device

    def __call__(self, *tensors: Tensor | TensorDescriptor) -> None:
        """Launch on the current device's current stream."""
        if INTERPRETED:
            self.kernel[self.grid](*tensors, *self.rest)
            return
        arguments = []
        aligned = True
        for x in tensors:
            if type(x) is TensorDescriptor:  # always aligned
                arguments.append(x)
            else:
                address = x.data_ptr()
                aligned = aligned and address % 16 == 0
                arguments.append(address)
        device = torch.cuda.current_device()
        if aligned and device in self.compiled:
            self.compiled[device](*arguments, *self.rest)
            return
        compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
        if aligned:
            self.compiled[device] = compiled[self.grid]


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, *, tiles: ForwardTiles | None = None, precision: str | None = None
) -> tuple[Tensor, Tensor]:
    """Output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm.

    Tiles and the precision of the products (input_precision of tl.dot) are the default ones unless an experiment passes
    its own.
    """
    tiles = tiles or default_tiles(q.dtype, q.shape)[0]
    o = empty_output(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    if tiles.descriptors:
        q, k, v = _ensure_aligned(q), _ensure_aligned(k), _ensure_aligned(v)
        block_d = _block_d(q.shape[-1], q.dtype)
        sources = (_descriptor(q, tiles.block_m, block_d), *(_descriptor(x, tiles.block_n, block_d) for x in (k, v)))
    else:
        sources = q, k, v = _ensure_contiguous(q), _ensure_contiguous(k), _ensure_contiguous(v)
    strides = (q.stride(), k.stride(), v.stride(), o.stride())
    _forward_launch(tiles, precision, q.dtype, is_causal, q.shape, k.shape[-2], strides)(*sources, o, lse)
    return o, lse


def attention_backward(
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    *,
    tiles: BackwardTiles | None = None,
    precision: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; tiles and precision as in attention_forward."""
    tiles = tiles or default_tiles(q.dtype, q.shape)[1]
    dq, dk, dv = empty_output(q), empty_output(k), empty_output(v)
    ensure = _ensure_aligned if tiles.descriptors else _ensure_contiguous
    do, q, k, v = ensure(grad_o), ensure(q), ensure(k), ensure(v)
    lse_delta = _preprocess(o, do, lse) if tiles.preprocess else lse
    sources = (q, k, v, o, do, lse_delta)
    if tiles.descriptors:
        block_m = block_n = tiles.block_outer  # = block_inner
        block_d = _block_d(q.shape[-1], q.dtype)
        sources = (
            _descriptor(q, block_m, block_d),
            *(_descriptor(x, block_n, block_d) for x in (k, v)),
            o,
            _descriptor(do, block_m, block_d),
            TensorDescriptor(lse_delta, [lse_delta.numel()], [1], [block_m]),
        )
    strides = (*(x.stride() for x in (q, k, v, o, do)), dq.stride(), dk.stride(), dv.stride())
    launch = _backward_launch(tiles, precision, q.dtype, is_causal, q.shape, k.shape[-2], strides)
    launch(*sources, dq, dk, dv)
    return dq, dk, dv


def _preprocess(o: Tensor, do: Tensor, lse: Tensor) -> Tensor:
    """L and D from preprocess_kernel, flat, [batch x heads x 2 x n_queries_rounded] fp32."""
    n_queries = o.shape[-2]
    rows = o.numel() // (o.shape[-1] * n_queries) * _rounded(n_queries)
    lse_delta = lse.new_empty(2 * rows)
    _preprocess_launch(o.dtype, o.shape, (o.stride(), do.stride()))(o, do, lse, lse_delta)
    return lse_delta


@lru_cache(CACHE_SIZE)
def default_tiles(dtype: torch.dtype, shape: torch.Size) -> tuple[ForwardTiles, BackwardTiles]:
    """The tables' tiles for queries of this dtype and shape."""
    n_queries, d = shape[-2:]
    block_d = _block_d(d, dtype)
    aligned = d * dtype.itemsize % 16 == 0
    problem = (dtype == torch.float32, block_d, math.prod(shape[:-1]), n_queries, aligned)
    forward = replace(forward_tiles(*problem), group=forward_group(block_d, n_queries))
    return forward, replace(backward_tiles(*problem), group=backward_group(n_queries))


@lru_cache(CACHE_SIZE)
def _forward_launch(
    tiles: ForwardTiles,
    precision: str | None,
    dtype: torch.dtype,
    is_causal: bool,
    shape: torch.Size,
    n_keys: int,
    strides: Strides,
) -> Launch:
    batch, heads, n_queries, d = _shape_4d(shape)
    softmax_scale_log2 = LOG2_E / math.sqrt(d)
    group = largest_group(tiles.group, batch * heads)
    scalars = (*_kernel_strides(strides), group, heads, n_queries, n_keys, softmax_scale_log2)
    blocks = (tiles.block_m, tiles.block_n, _block_d(d, dtype))
    constexprs = (d, *blocks, is_causal, tiles.descriptors, precision or _default_precision(dtype))
    programs = _cdiv(n_queries, tiles.block_m) * batch * heads
    return Launch(forward_kernel, programs, scalars, constexprs, tiles.num_warps, tiles.num_stages, tiles.maxnreg)


@lru_cache(CACHE_SIZE)
def _backward_launch(
    tiles: BackwardTiles,
    precision: str | None,
    dtype: torch.dtype,
    is_causal: bool,
    shape: torch.Size,
    n_keys: int,
    strides: Strides,
) -> Launch:
    batch, heads, n_queries, d = _shape_4d(shape)
    key_tiles, query_tiles = _cdiv(n_keys, tiles.block_outer), _cdiv(n_queries, tiles.block_outer)
    lengths = (n_queries, _rounded(n_queries), n_keys, key_tiles, query_tiles)
    softmax_scale = 1 / math.sqrt(d)
    group = largest_group(tiles.group, batch * heads)
    scalars = (*_kernel_strides(strides), group, heads, *lengths, softmax_scale)
    blocks = (tiles.block_outer, tiles.block_inner, _block_d(d, dtype))
    flags = (is_causal, tiles.preprocess, tiles.descriptors)
    constexprs = (d, *blocks, *flags, precision or _default_precision(dtype))
    programs = (key_tiles + query_tiles) * batch * heads
    return Launch(backward_kernel, programs, scalars, constexprs, tiles.num_warps, tiles.num_stages, tiles.maxnreg)


@lru_cache(CACHE_SIZE)
def _preprocess_launch(dtype: torch.dtype, shape: torch.Size, strides: Strides) -> Launch:
    batch, heads, n_queries, d = _shape_4d(shape)
    n_queries_rounded = _rounded(n_queries)
    scalars = (*_kernel_strides(strides), heads, n_queries, n_queries_rounded)
    constexprs = (d, PREPROCESS_BLOCK_M, _block_d(d, dtype))
    programs = batch * heads * n_queries_rounded // PREPROCESS_BLOCK_M
    return Launch(preprocess_kernel, programs, scalars, constexprs, num_warps=4, num_stages=1)


def _default_precision(dtype: torch.dtype) -> str:
    """Precision of the products: six bf16 products make one of fp32 accuracy on the matrix units.

    That is faster here than three TF32 products, and closer to float64 than the fp32 units themselves. The interpreter
    computes in fp32 and does not know the name.
    """
    return "bf16x6" if dtype == torch.float32 and not INTERPRETED else "ieee"


def largest_group(limit: int | None, batch_heads: int) -> int:
    """The largest number of heads up to a limit of which all groups can be alike; all heads if there is no limit."""
    limit = batch_heads if limit is None else min(limit, batch_heads)
    return max(size for size in range(1, limit + 1) if batch_heads % size == 0)


def empty_output(x: Tensor) -> Tensor:
    """An uninitialized tensor like x, in its memory layout if the last axis is contiguous there."""
    output = torch.empty_like(x)
    return output if output.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _ensure_contiguous(x: Tensor) -> Tensor:
    """X, copied if its last axis is not contiguous, as in the gradient of a sum."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _ensure_aligned(x: Tensor) -> Tensor:
    """X with a contiguous last axis and every other stride a positive multiple of 16 bytes, copied if need be."""
    unit = 16 // x.element_size()
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s % unit == 0 for s in x.stride()[:-1])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _descriptor(x: Tensor, block: int, block_d: int) -> TensorDescriptor:
    """Descriptor that loads [block, block_d] tiles, with zeros beyond the tensor's end."""
    batch, heads, n, d = _shape_4d(x.shape)
    strides = x.stride() if x.ndim == 4 else (x.stride(0), *x.stride())
    return TensorDescriptor(x, [batch, heads, n, d], list(strides), [1, 1, block, block_d])


def _shape_4d(shape: torch.Size) -> tuple[int, int, int, int]:
    """Batch, heads, rows, d; one head if the shape has no heads axis."""
    heads = shape[1] if len(shape) == 4 else 1
    return shape[0], heads, shape[-2], shape[-1]


def _kernel_strides(strides: Strides) -> list[int]:
    """Strides of batch, heads and rows, tensor after tensor, as the kernels take them."""
    flat: list[int] = []
    for each in strides:
        flat += each[:3] if len(each) == 4 else (each[0], 0, each[1])
    return flat


def _block_d(d: int, dtype: torch.dtype) -> int:
    """The head dimension rounded up to a power of two that the matrix units take; fp32 is slow below 32."""
    return max(32 if dtype == torch.float32 else 16, 1 << (d - 1).bit_length())


def _rounded(n_queries: int) -> int:
    return _cdiv(n_queries, ROUNDED_TO) * ROUNDED_TO


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
