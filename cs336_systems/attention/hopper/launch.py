"""From tensors to launches of the Hopper kernels: what they take, descriptors, buffers, the grid.

All functions take q [batch, heads, n_queries, d] and k, v [batch, heads, n_keys, d], or the same without the heads
axis, in bf16 or fp16, with any strides: what a tensor map does not take is copied. What follows from shapes and strides
alone is worked out once per problem and cached, as in triton_launch.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cs336_systems.attention.hopper.backward_d64 import attention_backward_d64_kernel
from cs336_systems.attention.hopper.backward_d128 import attention_backward_d128_kernel
from cs336_systems.attention.hopper.backward_edges import attention_dq_kernel, attention_prepare_kernel
from cs336_systems.attention.hopper.forward import attention_forward_kernel
from cs336_systems.attention.hopper.tile_config import (
    BACKWARD_REGISTERS,
    BackwardTiles,
    ForwardTiles,
    backward_tiles,
    forward_tiles,
)
from cs336_systems.attention.triton_launch import CACHE_SIZE, LOG2_E, empty_output, largest_group
from cs336_systems.attention.triton_launch import Launch as TritonLaunch

DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 128
MIN_QUERIES = 2**16  # batch x heads x n_queries: four programs of 128 queries for each multiprocessor
MIN_LENGTH = 1024  # queries, and keys, of a sequence
MIN_HEAD_DIM = 40  # up to 32 are padded to 64 here, and to 32 at most by the Triton kernels
MAX_GRID = 65535  # in the second and third dimension
QUERIES = 64  # per warpgroup in the forward pass, per step in the backward pass
KEYS = 128  # per program in the backward pass
UNIT = 8  # 16-bit numbers in the 16 bytes of which a tensor map's strides are multiples

TILE_LAYOUT = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
ROW_LAYOUT = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)


class Described(NamedTuple):
    """A tensor as a kernel's descriptor sees it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    """Of a tile."""


def takes(q: Tensor, k: Tensor) -> bool:
    """Whether the kernels take inputs of this dtype and these shapes, on this device."""
    d = q.shape[-1]
    return (
        q.is_cuda
        and _is_hopper(q.device.index)
        and q.dtype in DTYPES
        and d <= MAX_HEAD_DIM
        and d % UNIT == 0
        and math.prod(q.shape[:-2]) <= MAX_GRID
        and max(q.shape[-2], k.shape[-2]) <= MAX_GRID * QUERIES
    )


def is_faster(q_shape: torch.Size, k_shape: torch.Size) -> bool:
    """Whether inputs of these shapes are many and long enough for these kernels to be faster than the Triton ones.

    Their tiles are large, so that few short heads leave multiprocessors idle, and their launches cost the host more.
    """
    enough = math.prod(q_shape[:-1]) >= MIN_QUERIES
    return enough and min(q_shape[-2], k_shape[-2]) >= MIN_LENGTH and q_shape[-1] >= MIN_HEAD_DIM


@lru_cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


class Launch:
    """kernel[grid](*descriptors, *pointers, *scalars, *constexprs), with less work for the host from the second call.

    As triton_launch.Launch, for kernels whose first arguments are descriptors. They differ from call to call in their
    tensors only, so all else about them is checked once.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        described: Sequence[Described],
        scalars: tuple[float, ...],
        constexprs: tuple[int, ...],
        maxnreg: int | None = None,
    ):
        self.kernel = kernel
        self.grid = grid
        self.described = described
        self.rest = (*scalars, *constexprs)
        self.options = {"num_warps": 4} | ({} if maxnreg is None else {"maxnreg": maxnreg})
        self.fields: list[dict[str, Any]] = []  # of each descriptor, but for its tensor
        self.compiled: dict[int, Callable[..., None]] = {}  # by device

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current device's current stream; all tensors start at multiples of 16 bytes."""
        device = torch.cuda.current_device()
        n = len(self.described)
        if device not in self.compiled:
            descriptors = [_descriptor(x, each) for x, each in zip(tensors[:n], self.described, strict=True)]
            self.fields = [{name: value for name, value in vars(x).items() if name != "base"} for x in descriptors]
            compiled = self.kernel[self.grid](*descriptors, *tensors[n:], *self.rest, **self.options)
            self.compiled[device] = compiled[self.grid]
            return
        arguments: list[Any] = []
        for x, fields in zip(tensors, self.fields, strict=False):
            descriptor = object.__new__(TensorDescriptor)
            vars(descriptor).update(fields, base=x)
            arguments.append(descriptor)
        self.compiled[device](*arguments, *(x.data_ptr() for x in tensors[n:]), *self.rest)


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, *, tiles: ForwardTiles | None = None
) -> tuple[Tensor, Tensor]:
    """Output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm.

    Tiles are the default ones unless an experiment passes its own.
    """
    tiles = tiles or forward_tiles(_block_d(q.shape[-1]), k.shape[-2])
    o = empty_output(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    q, k, v = _ensure_described(q), _ensure_described(k), _ensure_described(v)
    strides = tuple(x.stride() for x in (q, k, v, o))
    _forward_launch(tiles, is_causal, q.dtype, q.shape, k.shape, strides)(q, k, v, o, lse)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; that of q differs from run to run by the order of its additions."""
    block_d = _block_d(q.shape[-1])
    tiles = tiles or backward_tiles(block_d, q.shape[-2])
    dq, dk, dv = empty_output(q), empty_output(k), empty_output(v)
    do, q, k, v = (_ensure_described(x) for x in (grad_o, q, k, v))
    rows = math.prod(q.shape[:-2]) * _cdiv(q.shape[-2], QUERIES) * QUERIES
    lse_delta = lse.new_empty(2 * rows)
    dq_sums = lse.new_empty(rows * block_d)
    strides = tuple(x.stride() for x in (q, k, v, do, dk, dv, o, dq))
    prepare, main, finish = _backward_launches(tiles, is_causal, q.dtype, q.shape, k.shape, strides)
    prepare(o, do, lse, lse_delta, dq_sums)
    main(q, k, v, do, dk, dv, lse_delta, dq_sums)
    finish(dq_sums, dq)
    return dq, dk, dv


@lru_cache(CACHE_SIZE)
def _forward_launch(
    tiles: ForwardTiles,
    is_causal: bool,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: tuple[tuple[int, ...], ...],
) -> Launch:
    batch, heads, n_queries, d = _shape_4d(q_shape)
    block_d = _block_d(d)
    q, k, v, o = strides
    described = [
        _described(q_shape, q, QUERIES, block_d),
        _described(k_shape, k, tiles.block_n, block_d),
        _described(k_shape, v, tiles.block_n, block_d),
        _described(q_shape, o, QUERIES, block_d),
    ]
    group = largest_group(tiles.group, batch * heads)
    grid = (group, _cdiv(n_queries, tiles.consumers * QUERIES), batch * heads // group)
    scalars = (heads, n_queries, k_shape[-2], LOG2_E / math.sqrt(d))
    constexprs = (tiles.block_n, block_d, tiles.consumers, tiles.stages, is_causal, *tiles.registers)
    return Launch(attention_forward_kernel, grid, described, scalars, constexprs, tiles.maxnreg)


@lru_cache(CACHE_SIZE)
def _backward_launches(
    tiles: BackwardTiles,
    is_causal: bool,
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    strides: tuple[tuple[int, ...], ...],
) -> tuple[TritonLaunch, Launch, TritonLaunch]:
    batch, heads, n_queries, d = _shape_4d(q_shape)
    n_keys = k_shape[-2]
    block_d = _block_d(d)
    q, k, v, do, dk, dv, o, dq = strides
    query_tiles = batch * heads * _cdiv(n_queries, QUERIES)
    half = min(64, block_d)
    described = [
        _described(q_shape, q, 64, block_d),
        _described(k_shape, k, 64, half),
        _described(k_shape, v, 64, block_d),
        _described(q_shape, do, 64, block_d),
        _described(k_shape, dk, 64, block_d),
        _described(k_shape, dv, 64, block_d),
        Described((query_tiles * 2 * QUERIES,), (1,), (QUERIES,)),
    ]
    group = largest_group(tiles.group, batch * heads)
    grid = (group, _cdiv(n_keys, KEYS), batch * heads // group)
    softmax_scale = 1 / math.sqrt(d)
    scalars = (heads, n_queries, n_keys, LOG2_E * softmax_scale, softmax_scale)
    flags = (is_causal, n_keys % KEYS != 0)
    if block_d == 64:
        kernel = attention_backward_d64_kernel
        stages: tuple[int, ...] = (tiles.stages, tiles.ds_stages, tiles.early_dv)
    else:
        kernel = attention_backward_d128_kernel
        stages = (tiles.stages, tiles.ds_stages)
    main = Launch(kernel, grid, described, scalars, (*stages, *flags, *BACKWARD_REGISTERS[block_d]))
    outer = (*_outer_strides(o), *_outer_strides(do), heads, n_queries)
    prepare = TritonLaunch(attention_prepare_kernel, query_tiles, outer, (d, block_d), num_warps=4, num_stages=1)
    outer_dq = (*_outer_strides(dq), heads, n_queries, softmax_scale)
    blocks = query_tiles * (block_d // 64)
    finish = TritonLaunch(attention_dq_kernel, blocks, outer_dq, (d, block_d), num_warps=4, num_stages=1)
    return prepare, main, finish


def _ensure_described(x: Tensor) -> Tensor:
    """X if a tensor map takes its strides and start, else a contiguous copy."""
    axes = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(n == 1 or (s > 0 and s % UNIT == 0) for n, s in axes)
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _described(shape: torch.Size, strides: tuple[int, ...], block: int, block_d: int) -> Described:
    """[batch, heads, rows, d] in tiles of [1, 1, block, block_d]; an axis of length 1 may have any stride."""
    batch, heads, rows, d = _shape_4d(shape)
    four = (*_outer_strides(strides), 1)
    aligned = tuple(d if n == 1 else s for n, s in zip((batch, heads, rows), four[:3], strict=True))
    return Described((batch, heads, rows, d), (*aligned, 1), (1, 1, block, block_d))


def _descriptor(x: Tensor, described: Described) -> TensorDescriptor:
    layout = ROW_LAYOUT if len(described.shape) == 1 else TILE_LAYOUT
    return TensorDescriptor(x, list(described.shape), list(described.strides), list(described.block), layout)


def _shape_4d(shape: torch.Size) -> tuple[int, int, int, int]:
    """Batch, heads, rows, d; one head if the shape has no heads axis."""
    heads = shape[1] if len(shape) == 4 else 1
    return shape[0], heads, shape[-2], shape[-1]


def _outer_strides(strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Of batch, heads and rows."""
    return (strides[0], strides[1], strides[2]) if len(strides) == 4 else (strides[0], 0, strides[1])


def _block_d(d: int) -> int:
    """The head dimension padded to what the kernels are made for."""
    return 64 if d <= 64 else 128


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
