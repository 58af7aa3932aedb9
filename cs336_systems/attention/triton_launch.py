"""From tensors to kernel launches: shapes, strides, descriptors, output buffers.

All functions take q [batch, heads, n_queries, d] and k, v [batch, heads, n_keys, d], or the same without the heads
axis, in bf16, fp16 or fp32, with any strides. What follows from shapes and strides alone is worked out once a problem
and remembered: a short sequence is computed faster than a host can say what to compute.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cs336_systems.attention.tile_config import BackwardTiles, ForwardTiles, backward_tiles, forward_tiles
from cs336_systems.attention.triton_backward import backward_kernel
from cs336_systems.attention.triton_forward import forward_kernel
from cs336_systems.attention.triton_row_statistics import statistics_kernel

LOG2_E = math.log2(math.e)
PADDED_ROWS = 128  # queries are padded to a multiple of this in the buffer of L and D: any tile divides it
STATISTICS_ROWS = 32  # queries a program of statistics_kernel
REMEMBERED = 4096  # problems; a bound for whoever feeds ever new lengths
INTERPRETED = triton.knobs.runtime.interpret


class Launch:
    """kernel[(programs,)](*tensors, *numbers, *constants), with less work for the host from the second time on.

    Triton's own launch looks at each of some 40 arguments from Python to find the compiled kernel, which takes longer
    than a short kernel runs. Here the compiled kernel is kept. It was specialized on the numbers, the constants, the
    tensors' dtypes (so a Launch is for tensors of the same dtypes always) and on tensors that start at multiples of 16
    bytes; others go the long way.
    """

    def __init__(
        self, kernel, programs: int, numbers: tuple, constants: tuple, warps: int, stages: int, registers=None
    ):
        self.kernel = kernel
        self.grid = (programs, 1, 1)
        self.rest = (*numbers, *constants)
        self.options = {"num_warps": warps, "num_stages": stages}
        if registers is not None:
            self.options["maxnreg"] = registers
        self.compiled: dict[int, Callable] = {}  # by device

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

    Tiles and the precision of the products are the usual ones unless given, as an experiment with them does.
    """
    tiles = tiles or usual_tiles(q.dtype, q.shape)[0]
    o = empty_output(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    if tiles.descriptors:
        q, k, v = _aligned(q), _aligned(k), _aligned(v)
        block_d = _block_d(q.shape[-1], q.dtype)
        sources = (_descriptor(q, tiles.queries, block_d), *(_descriptor(x, tiles.keys, block_d) for x in (k, v)))
    else:
        sources = q, k, v = _dense(q), _dense(k), _dense(v)
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
    tiles = tiles or usual_tiles(q.dtype, q.shape)[1]
    dq, dk, dv = empty_output(q), empty_output(k), empty_output(v)
    fit = _aligned if tiles.descriptors else _dense
    grad_o, q, k, v = fit(grad_o), fit(q), fit(k), fit(v)
    row_statistics = _row_statistics(grad_o, o, lse) if tiles.statistics else lse
    sources = (q, k, v, o, grad_o, row_statistics)
    if tiles.descriptors:
        rows, block_d = tiles.own, _block_d(q.shape[-1], q.dtype)
        qkv = (_descriptor(x, rows, block_d) for x in (q, k, v))
        statistics = TensorDescriptor(row_statistics, [row_statistics.numel()], [1], [rows])
        sources = (*qkv, o, _descriptor(grad_o, rows, block_d), statistics)
    strides = (*(x.stride() for x in (q, k, v, o, grad_o)), dq.stride(), dk.stride(), dv.stride())
    launch = _backward_launch(tiles, precision, q.dtype, is_causal, q.shape, k.shape[-2], strides)
    launch(*sources, dq, dk, dv)
    return dq, dk, dv


def _row_statistics(grad_o: Tensor, o: Tensor, lse: Tensor) -> Tensor:
    """L and D of statistics_kernel, flat, [batch x heads x 2 x n_padded] fp32."""
    n_queries = o.shape[-2]
    rows = o.numel() // (o.shape[-1] * n_queries) * _padded(n_queries)
    row_statistics = lse.new_empty(2 * rows)
    _statistics_launch(o.dtype, o.shape, (o.stride(), grad_o.stride()))(o, grad_o, lse, row_statistics)
    return row_statistics


@lru_cache(REMEMBERED)
def usual_tiles(dtype: torch.dtype, shape: torch.Size) -> tuple[ForwardTiles, BackwardTiles]:
    """The tables' tiles for queries of this dtype and shape."""
    d = shape[-1]
    aligned = d * dtype.itemsize % 16 == 0
    problem = (dtype == torch.float32, _block_d(d, dtype), math.prod(shape[:-1]), shape[-2], aligned)
    return forward_tiles(*problem), backward_tiles(*problem)


@lru_cache(REMEMBERED)
def _forward_launch(
    tiles: ForwardTiles,
    precision: str | None,
    dtype: torch.dtype,
    is_causal: bool,
    shape: torch.Size,
    n_keys: int,
    strides: tuple,
) -> Launch:
    batch, heads, n_queries, d = _four(shape)
    return Launch(
        forward_kernel,
        _cdiv(n_queries, tiles.queries) * batch * heads,
        (*_rows_strides(strides), batch * heads, heads, n_queries, n_keys, LOG2_E / math.sqrt(d)),
        (
            *(d, tiles.queries, tiles.keys, _block_d(d, dtype), is_causal, tiles.descriptors),
            precision or _usual_precision(dtype),
        ),
        tiles.warps,
        tiles.stages,
        tiles.registers,
    )


@lru_cache(REMEMBERED)
def _backward_launch(
    tiles: BackwardTiles,
    precision: str | None,
    dtype: torch.dtype,
    is_causal: bool,
    shape: torch.Size,
    n_keys: int,
    strides: tuple,
) -> Launch:
    batch, heads, n_queries, d = _four(shape)
    key_tiles, query_tiles = _cdiv(n_keys, tiles.own), _cdiv(n_queries, tiles.own)
    return Launch(
        backward_kernel,
        (key_tiles + query_tiles) * batch * heads,
        (
            *_rows_strides(strides),
            *(batch * heads, heads, n_queries, _padded(n_queries), n_keys, key_tiles, query_tiles, 1 / math.sqrt(d)),
        ),
        (
            *(d, tiles.own, tiles.take, _block_d(d, dtype), is_causal, tiles.statistics, tiles.descriptors),
            precision or _usual_precision(dtype),
        ),
        tiles.warps,
        tiles.stages,
        tiles.registers,
    )


@lru_cache(REMEMBERED)
def _statistics_launch(dtype: torch.dtype, shape: torch.Size, strides: tuple) -> Launch:
    batch, heads, n_queries, d = _four(shape)
    return Launch(
        statistics_kernel,
        batch * heads * _padded(n_queries) // STATISTICS_ROWS,
        (*_rows_strides(strides), heads, n_queries, _padded(n_queries)),
        (d, STATISTICS_ROWS, _block_d(d, dtype)),
        warps=4,
        stages=1,
    )


def _usual_precision(dtype: torch.dtype) -> str:
    """Of the products: six bf16 products make one of fp32 accuracy on the matrix units.

    That is faster here than three of tf32, and closer to float64 than the fp32 units themselves. The interpreter
    computes in fp32 and knows no such name.
    """
    return "bf16x6" if dtype == torch.float32 and not INTERPRETED else "ieee"


def empty_output(x: Tensor) -> Tensor:
    """An uninitialized tensor like x, in its memory layout if the last axis is dense there."""
    output = torch.empty_like(x)
    return output if output.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _dense(x: Tensor) -> Tensor:
    """X, copied if its last axis is not dense, as the gradient of a sum is not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _aligned(x: Tensor) -> Tensor:
    """X with the last axis dense and every other stride a positive multiple of 16 bytes, copied if need be."""
    unit = 16 // x.element_size()
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s % unit == 0 for s in x.stride()[:-1])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _descriptor(x: Tensor, rows: int, block_d: int) -> TensorDescriptor:
    """Descriptor that loads [rows, block_d] tiles, with zeros beyond the tensor's end."""
    batch, heads, n, d = _four(x.shape)
    strides = x.stride() if x.ndim == 4 else (x.stride(0), *x.stride())
    return TensorDescriptor(x, [batch, heads, n, d], list(strides), [1, 1, rows, block_d])


def _four(shape: torch.Size) -> tuple[int, int, int, int]:
    """Batch, heads, rows, d."""
    return tuple(shape) if len(shape) == 4 else (shape[0], 1, *shape[1:])


def _rows_strides(strides: tuple[tuple[int, ...], ...]) -> list[int]:
    """Strides of batch, heads and rows, tensor after tensor."""
    flat: list[int] = []
    for each in strides:
        flat += each[:3] if len(each) == 4 else (each[0], 0, each[1])
    return flat


def _block_d(d: int, dtype: torch.dtype) -> int:
    """The head dimension rounded up to a power of two that the matrix units take; fp32 is slow in less than 32."""
    return max(32 if dtype == torch.float32 else 16, 1 << (d - 1).bit_length())


def _padded(n_queries: int) -> int:
    return _cdiv(n_queries, PADDED_ROWS) * PADDED_ROWS


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
