"""Launches of the Triton kernels: tiles, descriptors, grids, output buffers.

All functions accept q [batch, heads, n_queries, d] and k, v [batch, key heads, n_keys, d], or the same without the axis
of heads, in bf16, fp16 or fp32, with any strides. Each key head is shared by heads / key heads neighbouring heads of q.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cs336_systems.attention.chip import H200, Chip, chip_of, triton_obstacle
from cs336_systems.attention.launcher import (
    CACHE_SIZE,
    INTERPRETED,
    Launch,
    MakeDescriptor,
    Strides,
    cdiv,
    described_as,
    ensure_described,
    key_gradients,
    largest_group,
    outer_strides,
    shape_4d,
    sum_shared,
)
from cs336_systems.attention.operators import empty_output, softmax_scale
from cs336_systems.attention.options import DEFAULTS, Options, Variant, sink_gradient, split_tensors, window_of
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


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options = DEFAULTS,
    *,
    tiles: ForwardTiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm.

    Tests pass other tiles than the default ones.
    """
    variant, tensors = split_tensors(options)
    tiles = tiles or default_tiles(q.get_device(), q.dtype, variant.typical(q.shape))[0]
    o = empty_output(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    ensure = ensure_described if tiles.descriptors else _ensure_contiguous
    q, k, v = ensure(q), ensure(k), ensure(v)
    strides = (q.stride(), k.stride(), v.stride(), o.stride())
    _forward_launch(tiles, q.dtype, q.shape, k.shape, strides, variant)(q, k, v, o, lse, *tensors)
    return o, lse


def attention_backward(
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None = None,
    options: Options = DEFAULTS,
    *,
    tiles: BackwardTiles | None = None,
) -> list[Tensor]:
    """Compute the gradients of q, k, v and, if there are any, sinks from the gradients of o and, unless it is None, of
    L.
    """
    variant, tensors = split_tensors(options)
    tiles = tiles or default_tiles(q.get_device(), q.dtype, variant.typical(q.shape))[1]
    if grad_lse is not None or variant.has_tensors:
        tiles = replace(tiles, preprocess=True)
    dq, (dk, dv) = empty_output(q), key_gradients(q, k, v)
    inputs = k, v
    ensure = ensure_described if tiles.descriptors else _ensure_contiguous
    do, q, k, v = ensure(grad_o), ensure(q), ensure(k), ensure(v)
    lse_delta = _preprocess(o, do, lse, grad_lse) if tiles.preprocess else lse
    strides = (*(x.stride() for x in (q, k, v, do, o)), dq.stride(), dk.stride(), dv.stride())
    launch = _backward_launch(tiles, q.dtype, q.shape, k.shape, strides, variant)
    launch(q, k, v, do, lse_delta, o, dq, dk, dv, *tensors[1:])
    gradients = [dq, *sum_shared(dk, dv, *inputs)]
    if tensors and tensors[0] is not None:
        delta = lse_delta.view(*q.shape[:2], 2, -1)[:, :, 1, : q.shape[2]]
        gradients.append(sink_gradient(tensors[0], lse, delta))
    return gradients


def _preprocess(o: Tensor, do: Tensor, lse: Tensor, grad_lse: Tensor | None) -> Tensor:
    """Compute L and D - dL by preprocess_kernel, flat, [batch x heads x 2 x n_queries_rounded] fp32."""
    lse_delta = lse.new_empty(_lse_delta_size(o.shape))
    _preprocess_launch(o.dtype, o.shape, (o.stride(), do.stride()))(o, do, lse, lse_delta)
    if grad_lse is not None:
        n_queries = lse.shape[-1]
        lse_delta.view(-1, 2, _rounded(n_queries))[:, 1, :n_queries] -= grad_lse.reshape(-1, n_queries)
    return lse_delta


@lru_cache(CACHE_SIZE)
def default_tiles(device: int, dtype: torch.dtype, shape: torch.Size) -> tuple[ForwardTiles, BackwardTiles]:
    """Look up the tiles for a CUDA device; -1 is a CPU, where kernels are interpreted. See tiles_for."""
    return tiles_for(chip_of(device), dtype, shape)


def tiles_for(chip: Chip, dtype: torch.dtype, shape: torch.Size) -> tuple[ForwardTiles, BackwardTiles]:
    """Choose the tiles for queries of this dtype and shape on a chip.

    Raises:
        NotImplementedError: these kernels do not support the chip.
    """
    if obstacle := triton_obstacle(chip):
        raise NotImplementedError(f"the Triton kernels of attention do not run on this GPU: {obstacle}")
    n_queries, d = shape[-2:]
    block_d = _block_d(d, dtype)
    aligned = d * dtype.itemsize % 16 == 0
    queries = math.prod(shape[:-1]) * H200.sms // chip.sms  # as many per SM as on the H200 of the tables
    problem = (chip, dtype == torch.float32, block_d, queries, n_queries, aligned)
    forward = replace(forward_tiles(*problem), group=forward_group(block_d, n_queries))
    return forward, replace(backward_tiles(*problem), group=backward_group(n_queries))


@lru_cache(CACHE_SIZE)
def _forward_launch(
    tiles: ForwardTiles,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: Strides,
    variant: Variant,
) -> Launch:
    batch, heads, n_queries, d = shape_4d(q_shape)
    block_d = _block_d(d, dtype)
    group = largest_group(tiles.group, batch * heads)
    numbers = (group, heads, n_queries, k_shape[-2], LOG2_E * softmax_scale(d, variant.options.scale))
    of_options = _option_numbers(variant, n_queries, k_shape[-2], LOG2_E)
    missing = () if variant.has_tensors else (None,) * 3  # tensors
    tiles_of_queries = variant.count_tiles(n_queries, tiles.block_m)
    blocks = (tiles.block_m, tiles.block_n, block_d)
    flags = (variant.options.is_causal, tiles.descriptors, _input_precision(dtype))
    constexprs = (heads // shape_4d(k_shape)[1], d, *blocks, *flags)
    q, k, v, _ = strides
    descriptors = [
        _tiles_of(q_shape, q, tiles.block_m, block_d),
        _tiles_of(k_shape, k, tiles.block_n, block_d),
        _tiles_of(k_shape, v, tiles.block_n, block_d),
    ]
    return Launch(
        forward_kernel,
        (tiles_of_queries * batch * heads, 1, 1),
        (*missing, *_kernel_strides(strides), *numbers, *of_options),
        constexprs,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        maxnreg=tiles.maxnreg,
        descriptors=descriptors if tiles.descriptors else (),
    )


@lru_cache(CACHE_SIZE)
def _backward_launch(
    tiles: BackwardTiles,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: Strides,
    variant: Variant,
) -> Launch:
    batch, heads, n_queries, d = shape_4d(q_shape)
    n_keys = k_shape[-2]
    block_d = _block_d(d, dtype)
    key_tiles, query_tiles = (variant.count_tiles(n, tiles.block_outer) for n in (n_keys, n_queries))
    group = largest_group(tiles.group, batch * heads)
    scale = softmax_scale(d, variant.options.scale)
    lengths = (n_queries, _rounded(n_queries), n_keys, key_tiles, query_tiles)
    of_options = _option_numbers(variant, n_queries, n_keys, 1.0)
    missing = () if variant.has_tensors else (None,) * 2  # tensors
    flags = (variant.options.is_causal, tiles.preprocess, tiles.descriptors)
    blocks = (tiles.block_outer, tiles.block_inner, block_d)
    block = tiles.block_outer  # = block_inner, with descriptors
    q, k, v, do, *_ = strides
    lse_delta = {"shape": [_lse_delta_size(q_shape)], "strides": [1], "block_shape": [block]}
    descriptors: list[MakeDescriptor] = [
        _tiles_of(q_shape, q, block, block_d),
        _tiles_of(k_shape, k, block, block_d),
        _tiles_of(k_shape, v, block, block_d),
        _tiles_of(q_shape, do, block, block_d),
    ]
    if variant.documents is None:  # else see load_lse_delta
        descriptors.append(partial(TensorDescriptor, **lse_delta))
    return Launch(
        backward_kernel,
        ((key_tiles + query_tiles) * batch * heads, 1, 1),
        (*missing, *_kernel_strides(strides), group, heads, *lengths, scale, *of_options),
        (heads // shape_4d(k_shape)[1], d, *blocks, *flags, _input_precision(dtype)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        maxnreg=tiles.maxnreg,
        descriptors=descriptors if tiles.descriptors else (),
    )


@lru_cache(CACHE_SIZE)
def _preprocess_launch(dtype: torch.dtype, shape: torch.Size, strides: Strides) -> Launch:
    batch, heads, n_queries, d = shape_4d(shape)
    n_queries_rounded = _rounded(n_queries)
    programs = batch * heads * n_queries_rounded // PREPROCESS_BLOCK_M
    scalars = (*_kernel_strides(strides), heads, n_queries, n_queries_rounded)
    constexprs = (d, PREPROCESS_BLOCK_M, _block_d(d, dtype))
    return Launch(preprocess_kernel, (programs, 1, 1), scalars, constexprs, num_stages=1)


def _option_numbers(variant: Variant, n_queries: int, n_keys: int, unit: float) -> tuple[float | None, ...]:
    """Window, softcap in a unit of the logarithm, and number of documents, as the kernels accept them."""
    options = variant.options
    left, right = window_of(options, n_queries, n_keys)
    softcap = options.softcap * unit if options.softcap else None
    return left, None if options.is_causal else right, softcap, variant.documents


@lru_cache(CACHE_SIZE)
def _lse_delta_size(q_shape: torch.Size) -> int:
    return math.prod(q_shape[:-2]) * 2 * _rounded(q_shape[-2])


def _input_precision(dtype: torch.dtype) -> str:
    """Choose the precision of the matmuls: six bf16 matmuls give fp32 accuracy on the tensor cores.

    This is faster here than three TF32 matmuls, and closer to float64 than the fp32 units. The interpreter computes in
    fp32 and does not know the name.
    """
    return "bf16x6" if dtype == torch.float32 and not INTERPRETED else "ieee"


def _ensure_contiguous(x: Tensor) -> Tensor:
    """Return x, copied if its last axis is not contiguous, as in the gradient of a sum."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _tiles_of(shape: torch.Size, strides: tuple[int, ...], block: int, block_d: int) -> MakeDescriptor:
    """Make descriptors that load [block, block_d] tiles, with zeros beyond the tensor's end."""
    return partial(TensorDescriptor, **described_as(shape, strides), block_shape=[1, 1, block, block_d])


def _kernel_strides(strides: Strides) -> list[int]:
    """Strides of batch, heads and rows, one tensor after another, as the kernels expect them."""
    return [stride for each in strides for stride in outer_strides(each)]


def _block_d(d: int, dtype: torch.dtype) -> int:
    """The head dimension rounded up to a power of two that tensor cores support; fp32 is slow below 32."""
    return max(32 if dtype == torch.float32 else 16, 1 << (d - 1).bit_length())


def _rounded(n_queries: int) -> int:
    return cdiv(n_queries, ROUNDED_TO) * ROUNDED_TO
