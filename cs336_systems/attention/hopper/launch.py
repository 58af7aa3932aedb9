"""Launches of the Hopper kernels: supported inputs, descriptors, buffers, grids.

All functions accept q [batch, heads, n_queries, d] and k, v [batch, kv_heads, n_keys, d], or the same without the axis
of heads, in bf16 or fp16, with any strides: tensors that a tensor map does not support are copied. Each head of k and v
is shared by heads / kv_heads neighbouring heads of q. Packed documents are a batch of one.
"""

import math
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention.hopper.backward_d64 import attention_backward_d64_kernel
from cs336_systems.attention.hopper.backward_d128 import attention_backward_d128_kernel
from cs336_systems.attention.hopper.backward_edges import attention_postprocess_kernel, attention_preprocess_kernel
from cs336_systems.attention.hopper.documents import FAR
from cs336_systems.attention.hopper.forward import BLOCK_N, attention_forward_kernel
from cs336_systems.attention.hopper.head_tiles import box_columns, tile_layout
from cs336_systems.attention.hopper.tile_config import BACKWARD_REGISTERS, ForwardTiles, backward_group, forward_tiles
from cs336_systems.attention.launcher import (
    CACHE_SIZE,
    Launch,
    MakeDescriptor,
    Strides,
    described_as,
    ensure_described,
    key_gradients,
    largest_group,
    outer_strides,
    shape_4d,
    sum_shared,
)
from cs336_systems.attention.operators import empty_output, softmax_scale
from cs336_systems.attention.options import DEFAULTS, Options, Variant, split_tensors, window_of

LOG2_E = math.log2(math.e)
DTYPES = (torch.bfloat16, torch.float16)
MIN_QUERIES = 2**15  # batch x heads x n_queries: two programs of 128 queries for each SM
MIN_LENGTH = 512  # queries, and keys, of a sequence
MIN_WORK = 2**34  # batch x heads x n_queries x n_keys x d as the Triton kernels pad it: with less, calls are host-bound
MIN_HEAD_DIM = 40  # up to 32 are padded to 64 here, and to at most 32 by the Triton kernels
MAX_GRID = 65535  # in the second and third dimension
QUERIES = 64  # per warpgroup in the forward pass, per step in the backward pass
KEYS = 128  # per program in the backward pass
BLOCKS_D = (64, 80, 96, 128)  # the padded head dimensions
NO_TENSORS = (None, None, None)  # sinks and the bounds of documents
UNIT = 8  # 16-bit elements in 16 bytes; a tensor map's strides are multiples of that

ROW_LAYOUT = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)


def obstacle(dtype: torch.dtype, q_shape: torch.Size, k_shape: torch.Size, documents: int | None = None) -> str:
    """Name the reason why these kernels do not support inputs of this dtype and these shapes; empty if they do."""
    d = q_shape[-1]
    if dtype not in DTYPES:
        return "they accept bf16 and fp16"
    if d > BLOCKS_D[-1] or d % UNIT:
        return f"they accept head dimensions up to {BLOCKS_D[-1]} that are multiples of {UNIT}"
    tiles = Variant(documents=documents).count_tiles(max(q_shape[-2], k_shape[-2]), QUERIES)
    if max(math.prod(q_shape[:-2]), tiles) > MAX_GRID:
        return "there are more or longer sequences than they accept"
    faster = is_faster(q_shape, k_shape, documents is not None)
    return "" if faster else "the Triton kernels are faster for these shapes"


def is_faster(q_shape: torch.Size, k_shape: torch.Size, packed: bool = False) -> bool:
    """Whether these kernels are faster than the Triton kernels for inputs of these shapes.

    Their tiles are large, so a few short heads leave SMs idle, and their launches have more host overhead. Packed
    documents of any length take the Triton kernels longer than that.
    """
    n_queries, d = q_shape[-2:]
    n_keys = k_shape[-2]
    queries = math.prod(q_shape[:-1])
    long = min(n_queries, n_keys) >= MIN_LENGTH and queries * n_keys * triton.next_power_of_2(d) >= MIN_WORK
    return queries >= MIN_QUERIES and d >= MIN_HEAD_DIM and (packed or long)


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options = DEFAULTS,
    *,
    tiles: ForwardTiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm.

    A window without a causal mask is not supported. Tiles are the default ones unless an
    experiment passes its own.
    """
    variant, tensors = split_tensors(options)
    o = empty_output(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    q, k, v = ensure_described(q), ensure_described(k), ensure_described(v)
    strides = (q.stride(), k.stride(), v.stride(), o.stride())
    _forward_launch(tiles, variant, q.dtype, q.shape, k.shape, strides)(q, k, v, o, lse, *tensors or NO_TENSORS)
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
    group: int | None = None,
) -> list[Tensor]:
    """Compute the gradients of q, k, v and, if there are any, sinks from the gradients of o and, unless it is None, of
    L.

    The gradient of q differs from run to run by the order of its additions, unless deterministic is among the options.

    Groups of heads have the default size unless an experiment passes its own.
    """
    variant, tensors = split_tensors(options)
    sinks, *bounds = tensors or NO_TENSORS
    dq, (dk, dv) = empty_output(q), key_gradients(q, k, v)
    inputs = k, v
    do, q, k, v = ensure_described(grad_o), ensure_described(q), ensure_described(k), ensure_described(v)
    strides = tuple(x.stride() for x in (q, k, v, do, dk, dv, o, dq))
    launches = _backward_launches(group, variant, q.dtype, q.shape, k.shape, strides, grad_lse is not None)
    lse_delta = lse.new_empty(launches.lse_delta_size)
    dq_sums = lse.new_empty(launches.dq_size)
    query_tiles = len(lse_delta) // (2 * QUERIES)
    sink_sums = None if sinks is None else lse.new_empty(query_tiles)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    launches.preprocess(o, do, lse, lse_delta, dq_sums, grad_lse, sinks, sink_sums, *bounds)
    added = lse.new_zeros(query_tiles, dtype=torch.int32) if options.deterministic else None
    launches.main(q, k, v, do, dk, dv, lse_delta, dq_sums, added, *bounds)
    launches.postprocess(dq_sums, dq, *bounds)
    gradients = [dq, *sum_shared(dk, dv, *inputs)]
    if sinks is not None and sink_sums is not None:
        gradients.append(sink_sums.view(*lse.shape[:2], -1).sum((0, 2)).to(sinks.dtype))
    return gradients


@lru_cache(CACHE_SIZE)
def _forward_launch(
    tiles: ForwardTiles | None,
    variant: Variant,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: Strides,
) -> Launch:
    batch, heads, n_queries, d = shape_4d(q_shape)
    n_keys = k_shape[-2]
    block_d = _block_d(d)
    options = variant.options
    left, _ = window_of(options, n_queries, n_keys)
    *sequences, length, _ = variant.typical(q_shape)
    keys = variant.typical(k_shape)[-2]
    tiles = tiles or forward_tiles(block_d, math.prod(sequences), length, keys, left)
    q, k, v, o = strides
    group = largest_group(tiles.group, batch * heads)
    scale = _score_scale(softmax_scale(d, options.scale), options.softcap)
    return Launch(
        attention_forward_kernel,
        (group, variant.count_tiles(n_queries, tiles.consumers * QUERIES), batch * heads // group),
        (heads, n_queries, n_keys, scale, left, variant.documents),
        (
            heads // shape_4d(k_shape)[1],
            block_d,
            tiles.consumers,
            options.is_causal,
            options.softcap * LOG2_E if options.softcap else None,
            *tiles.registers,
        ),
        maxnreg=tiles.maxnreg,
        descriptors=[
            _tiles_of(variant, q_shape, q, QUERIES, block_d),
            _tiles_of(variant, k_shape, k, BLOCK_N.value, block_d),
            _tiles_of(variant, k_shape, v, BLOCK_N.value, block_d),
            _tiles_of(variant, q_shape, o, QUERIES, block_d),
        ],
    )


class BackwardLaunches(NamedTuple):
    """The three kernels of a backward pass, and the lengths of the fp32 buffers that they share."""

    preprocess: Launch
    main: Launch
    postprocess: Launch
    lse_delta_size: int
    dq_size: int


@lru_cache(CACHE_SIZE)
def _backward_launches(
    group: int | None,
    variant: Variant,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: Strides,
    has_grad_lse: bool,
) -> BackwardLaunches:
    options = variant.options
    batch, heads, n_queries, d = shape_4d(q_shape)
    n_keys = k_shape[-2]
    block_d = _block_d(d)
    scale = softmax_scale(d, options.scale)
    dk_shape = torch.Size((*q_shape[:-2], n_keys, d))  # and of dv
    query_tiles = batch * heads * variant.count_tiles(n_queries, QUERIES)
    lse_delta_size = query_tiles * 2 * QUERIES
    q, k, v, do, dk, dv, o, dq = strides
    preprocess = Launch(
        attention_preprocess_kernel,
        (query_tiles, 1, 1),
        (*outer_strides(o), *outer_strides(do), heads, n_queries, variant.documents),
        (d, block_d, triton.next_power_of_2(block_d)),
        num_stages=1,
    )
    length = variant.typical(q_shape)[-2]
    group = largest_group(group or backward_group(block_d, length, options.deterministic), batch * heads)
    left, _ = window_of(options, n_queries, n_keys)
    dq_columns = min(box_columns(block_d), 64)
    row = {"shape": [lse_delta_size], "strides": [1], "block_shape": [QUERIES], "layout": ROW_LAYOUT}
    widths = () if block_d == 64 else (block_d,)
    ragged = variant.documents is not None or n_keys % KEYS != 0
    flags = (options.is_causal, ragged, options.softcap * LOG2_E if options.softcap else None)
    main = Launch(
        attention_backward_d64_kernel if block_d == 64 else attention_backward_d128_kernel,
        (group, variant.count_tiles(n_keys, KEYS), batch * heads // group),
        (heads, n_queries, n_keys, _score_scale(scale, options.softcap), scale, left, variant.documents),
        (heads // shape_4d(k_shape)[1], *widths, *flags, *BACKWARD_REGISTERS[block_d]),
        descriptors=[
            _tiles_of(variant, q_shape, q, 64, block_d),
            _tiles_of(variant, k_shape, k, 64, dq_columns),
            _tiles_of(variant, k_shape, v, 64, block_d),
            _tiles_of(variant, q_shape, do, 64, block_d),
            _tiles_of(variant, dk_shape, dk, 64, block_d),
            _tiles_of(variant, dk_shape, dv, 64, block_d),
            partial(TensorDescriptor, **row),
        ],
    )
    postprocess = Launch(
        attention_postprocess_kernel,
        (query_tiles * block_d // dq_columns, 1, 1),
        (*outer_strides(dq), heads, n_queries, variant.documents, scale),
        (d, block_d, dq_columns),
        num_stages=1,
    )
    return BackwardLaunches(preprocess, main, postprocess, lse_delta_size, query_tiles * QUERIES * block_d)


def _tiles_of(
    variant: Variant, shape: torch.Size, strides: tuple[int, ...], block: int, block_d: int
) -> MakeDescriptor:
    """Make descriptors for tiles of block rows and block_d columns, with zeros beyond the end of a sequence."""
    fields = described_as(shape, strides)
    blocks = [1, 1, block, box_columns(block_d)]
    if variant.documents is not None:  # see documents.py
        (_, heads, _, d), (_, head, row, _) = fields["shape"], fields["strides"]
        far = FAR.value
        fields = {"shape": [2 * far - 1, far, heads, far, d], "strides": [2**34 - row, row, head, row, 1]}
        blocks = [1, *blocks]
    return partial(TensorDescriptor, **fields, block_shape=blocks, layout=tile_layout(block_d, len(blocks)))


def _score_scale(scale: float, softcap: float | None) -> float:
    """The factor of the scores as the kernels accept it: in units of log2, or of softcap."""
    return scale / softcap if softcap else LOG2_E * scale


def _block_d(d: int) -> int:
    """The head dimension padded to the next one of BLOCKS_D."""
    return next(block_d for block_d in BLOCKS_D if d <= block_d)
