"""From tensors to kernel launches: shapes, strides, descriptors, output buffers.

All functions take q [batch, heads, n_queries, d] and k, v [batch, heads, n_keys, d], or the same without the heads
axis, in bf16, fp16 or fp32, with any strides.
"""

import math

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cs336_systems.attention.tile_config import (
    SinglePassTiles,
    TwoPassTiles,
    backward_tiles,
    forward_tiles,
    two_pass_tiles,
)
from cs336_systems.attention.triton_forward import forward_kernel
from cs336_systems.attention.triton_single_pass import convert_dq_kernel, delta_kernel, single_pass_kernel
from cs336_systems.attention.triton_two_pass import two_pass_kernel

LOG2_E = math.log2(math.e)
PADDED_ROWS = 128  # queries are padded to a multiple of this in the single pass's buffers: any tile divides it
INTERPRETED = triton.knobs.runtime.interpret

_compiled: dict[tuple, object] = {}


def launch(
    kernel, programs: int, tensors: tuple, numbers: tuple, constants: tuple, warps: int, stages: int, registers=None
) -> None:
    """kernel[(programs,)](*tensors, *numbers, *constants), with less work for the host from the second time on.

    Triton's own launch looks at each of some 40 arguments from Python to find the compiled kernel, which takes longer
    than a short kernel runs. Here the compiled kernel is remembered by what it was specialized on: the values of the
    numbers, the constants, and the dtypes of tensors that start at multiples of 16 bytes (others go the long way).
    """
    dtypes = []
    aligned = True
    for x in tensors:
        if type(x) is TensorDescriptor:
            x = x.base
        dtypes.append(x.dtype)
        aligned = aligned and x.data_ptr() % 16 == 0
    device = None if INTERPRETED else torch.cuda.current_device()
    key = (kernel, device, numbers, constants, warps, stages, registers, *dtypes)
    compiled = _compiled.get(key) if aligned else None
    if compiled is not None:
        compiled[(programs, 1, 1)](*tensors, *numbers, *constants)
        return
    options = {"num_warps": warps, "num_stages": stages}
    if registers is not None:
        options["maxnreg"] = registers
    compiled = kernel[(programs,)](*tensors, *numbers, *constants, **options)
    if aligned and not INTERPRETED:
        if len(_compiled) >= 4096:  # a bound for whoever feeds it ever new lengths
            _compiled.clear()
        _compiled[key] = compiled


def empty_output(x: Tensor) -> Tensor:
    """An uninitialized tensor like x, in its memory layout if the last axis is dense there."""
    output = torch.empty_like(x)
    return output if output.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _cdiv(a: int, b: int) -> int:  # Triton's own can also be called from kernels, and takes ten times as long
    return -(-a // b)


def _shape(x: Tensor) -> tuple[int, int, int, int]:
    return tuple(x.shape) if x.ndim == 4 else (x.shape[0], 1, *x.shape[1:])


def _strides(*tensors: Tensor) -> list[int]:
    """Strides of batch, heads and rows, tensor after tensor."""
    strides = []
    for x in tensors:
        strides += x.stride()[:3] if x.ndim == 4 else (x.stride(0), 0, x.stride(1))
    return strides


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
    batch, heads, n, d = _shape(x)
    if x.ndim == 4:
        return TensorDescriptor(x, [batch, heads, n, d], list(x.stride()), [1, 1, rows, block_d])
    return TensorDescriptor(x, [batch, 1, n, d], [x.stride(0), *x.stride()], [1, 1, rows, block_d])


def _problem(q: Tensor) -> tuple[bool, int, int, bool, str]:
    """What the tile tables ask for (full_precision, block_d, rows, aligned), and the precision of the products."""
    d = q.shape[-1]
    full_precision = q.dtype == torch.float32
    # Six bf16 products make one of fp32 accuracy on the matrix units, faster here than three of tf32 and closer to
    # float64 than the fp32 units themselves. The interpreter computes in fp32 and knows no such name.
    precision = "bf16x6" if full_precision and not INTERPRETED else "ieee"
    block_d = max(16, 1 << (d - 1).bit_length())
    return full_precision, block_d, q.numel() // d, d * q.element_size() % 16 == 0, precision


def attention_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Output, like q, and its log-sum-exp L, [..., n_queries] fp32, natural logarithm."""
    full_precision, block_d, rows, aligned, precision = _problem(q)
    batch, heads, n_queries, d = _shape(q)
    tiles = forward_tiles(full_precision, block_d, rows, n_queries, aligned)
    o = empty_output(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    q, k, v = (_aligned(x) if tiles.descriptors else _dense(x) for x in (q, k, v))
    if tiles.descriptors:
        sources = (_descriptor(q, tiles.queries, block_d), *(_descriptor(x, tiles.keys, block_d) for x in (k, v)))
    else:
        sources = (q, k, v)
    launch(
        forward_kernel,
        _cdiv(n_queries, tiles.queries) * batch * heads,
        (*sources, o, lse),
        (*_strides(q, k, v, o), batch * heads, heads, n_queries, k.shape[-2], LOG2_E / math.sqrt(d)),
        (d, tiles.queries, tiles.keys, block_d, is_causal, precision, tiles.descriptors),
        tiles.warps,
        tiles.stages,
        tiles.registers,
    )
    return o, lse


def attention_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; the same bits every time under torch.use_deterministic_algorithms(True)."""
    full_precision, block_d, rows, aligned, precision = _problem(q)
    if torch.are_deterministic_algorithms_enabled():
        tiles = two_pass_tiles(full_precision, block_d, rows)
    else:
        tiles = backward_tiles(full_precision, block_d, rows, aligned)
    run = _single_pass if isinstance(tiles, SinglePassTiles) else _two_pass
    return run(tiles, grad_o, q, k, v, o, lse, is_causal, block_d, precision)


def _two_pass(
    tiles: TwoPassTiles,
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    block_d: int,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, n_queries, d = _shape(q)
    n_keys = k.shape[-2]
    dq, dk, dv = (empty_output(x) for x in (q, k, v))
    grad_o, q, k, v = (_dense(x) for x in (grad_o, q, k, v))
    key_tiles = _cdiv(n_keys, tiles.own)
    query_tiles = _cdiv(n_queries, tiles.own)
    launch(
        two_pass_kernel,
        (key_tiles + query_tiles) * batch * heads,
        (q, k, v, o, grad_o, lse, dq, dk, dv),
        (
            *_strides(q, k, v, o, grad_o, dq, dk, dv),
            *(batch * heads, heads, n_queries, n_keys, key_tiles, query_tiles, 1 / math.sqrt(d)),
        ),
        (d, tiles.take, tiles.own, block_d, is_causal, precision),
        tiles.warps,
        tiles.stages,
    )
    return dq, dk, dv


def _single_pass(
    tiles: SinglePassTiles,
    grad_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    block_d: int,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, n_queries, d = _shape(q)
    n_keys = k.shape[-2]
    dq, dk, dv = (empty_output(x) for x in (q, k, v))
    grad_o, q, k, v = (_aligned(x) for x in (grad_o, q, k, v))
    n_padded = _cdiv(n_queries, PADDED_ROWS) * PADDED_ROWS
    rows = batch * heads * n_padded
    scale = 1 / math.sqrt(d)
    delta, lse_log2 = torch.empty((2, rows), dtype=torch.float32, device=q.device)
    dq_sum = torch.empty((rows, block_d), dtype=torch.float32, device=q.device)
    launch(
        delta_kernel,
        rows // 32,
        (o, grad_o, lse, delta, lse_log2, dq_sum),
        (*_strides(o, grad_o), heads, n_queries, n_padded),
        (d, 32, block_d),
        4,
        1,
    )
    if INTERPRETED:  # which does not know the reduction of the copy engine
        target = dq_sum
    elif tiles.transposed:
        shape = [batch * heads * block_d, n_padded]
        target = TensorDescriptor(dq_sum, shape, [n_padded, 1], [block_d, tiles.queries])
    else:
        target = TensorDescriptor(dq_sum, [rows, block_d], [block_d, 1], [tiles.queries, block_d])
    launch(
        single_pass_kernel,
        _cdiv(n_keys, tiles.keys) * batch * heads,
        (
            _descriptor(q, tiles.queries, block_d),
            _descriptor(k, tiles.keys, block_d),
            _descriptor(v, tiles.keys, block_d),
            _descriptor(grad_o, tiles.queries, block_d),
            TensorDescriptor(lse_log2, [rows], [1], [tiles.queries]),
            TensorDescriptor(delta, [rows], [1], [tiles.queries]),
            target,
            dk,
            dv,
        ),
        (*_strides(dk, dv), batch * heads, heads, n_queries, n_padded, n_keys, scale, scale * LOG2_E),
        (d, tiles.queries, tiles.keys, block_d, is_causal, not INTERPRETED, tiles.transposed, precision),
        tiles.warps,
        tiles.stages,
        tiles.registers,
    )
    launch(
        convert_dq_kernel,
        rows // 64,
        (dq_sum, dq),
        (*_strides(dq), heads, n_queries, n_padded, scale),
        (d, 64, block_d, tiles.transposed),
        4,
        1,
    )
    return dq, dk, dv
