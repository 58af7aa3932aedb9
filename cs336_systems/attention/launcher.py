"""Low-overhead kernel launches and the tensor metadata kernels need.

For a short sequence, a kernel takes less time than its launch on the host. So values that depend only on shapes and
strides are computed once per problem and cached, and a compiled kernel is found without inspecting each argument.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from cs336_systems.attention.operators import empty_output

CACHE_SIZE = 4096  # problems; a bound for callers with ever-changing lengths
ALIGNMENT = 16  # bytes: the alignment for which kernels are specialized, and the unit of a descriptor's strides
INTERPRETED = triton.knobs.runtime.interpret

P = ParamSpec("P")
R = TypeVar("R")

Strides = tuple[tuple[int, ...], ...]
"""Strides of several tensors."""
MakeDescriptor = Callable[[Tensor], Any]
"""Function that makes a tensor's descriptor; all calls pass tensors of the same dtype, shape and strides."""


class Launch:
    """Low-overhead launch of kernel[grid](*tensors, *scalars, *constexprs) from the second call on.

    Triton's own launch inspects some 40 arguments in Python to find the compiled kernel, and calls the hooks of its
    profiler. This class keeps the compiled kernel. The kernel is specialized for the scalars, the constexprs, the
    tensors' dtypes (so a Launch must always be passed tensors of the same dtypes) and tensors that start at multiples
    of 16 bytes; other tensors go through Triton's own launch. The first tensors may be passed by descriptors. From call
    to call only their tensors change, so everything else about them is checked once.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        scalars: Sequence[float | None],
        constexprs: Sequence[float | str | None],
        *,
        num_warps: int = 4,
        maxnreg: int | None = None,
        num_stages: int | None = None,
        descriptors: Sequence[MakeDescriptor] = (),
    ):
        self.kernel = kernel
        self.grid = grid
        self.rest = (*scalars, *constexprs)
        options = {"num_warps": num_warps, "maxnreg": maxnreg, "num_stages": num_stages}
        # From Triton 3.10 on, a * b + c is rounded twice unless requested otherwise.
        self.options = {"enable_fp_fusion": True} | {name: x for name, x in options.items() if x is not None}
        self.descriptors = descriptors
        self.fields: list[tuple[type, dict[str, Any]]] = []  # of each descriptor, except its tensor
        self.compiled: dict[int, Any] = {}  # by device

    def __call__(self, *tensors: Any) -> None:
        """Launch on the current stream of the tensors' device, which is the current one; None stands for no tensor."""
        arguments: list[Any] = []
        bits = 0
        for x in tensors:
            address = x if x is None else x.data_ptr()
            bits |= address or 0
            arguments.append(address)
        device = tensors[0].get_device()
        compiled = self.compiled.get(device)
        if compiled is None or bits % ALIGNMENT:
            self._launch_anew(tensors, device, keep=bits % ALIGNMENT == 0)
            return
        for i, (kind, fields) in enumerate(self.fields):
            descriptor: Any = object.__new__(kind)
            vars(descriptor).update(fields, base=tensors[i])
            arguments[i] = descriptor
        stream = driver.active.get_current_stream(device)
        function, metadata = compiled.function, compiled.packed_metadata
        compiled.run(*self.grid, stream, function, metadata, None, None, None, *arguments, *self.rest)

    def _launch_anew(self, tensors: Sequence[Any], device: int, keep: bool) -> None:
        """Launch through Triton, and keep the kernel that it looks up or compiles."""
        descriptors = [make(x) for make, x in zip(self.descriptors, tensors, strict=False)]
        arguments = (*descriptors, *tensors[len(descriptors) :], *self.rest)
        if INTERPRETED:
            self.kernel[self.grid](*arguments)
            return
        compiled = self.kernel[self.grid](*arguments, **self.options)
        if keep:
            self.compiled[device] = compiled
            without_tensor = [{name: y for name, y in vars(x).items() if name != "base"} for x in descriptors]
            self.fields = list(zip(map(type, descriptors), without_tensor, strict=True))


def on_device(function: Callable[P, R]) -> Callable[P, R]:
    """Make the device of the first argument, a tensor, current while the function launches kernels."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        device = arguments[0].get_device()  # type: ignore[attr-defined]
        if device < 0 or device == torch.cuda.current_device():  # below zero on a CPU, where kernels are interpreted
            return function(*arguments, **options)
        with torch.cuda.device(device):
            return function(*arguments, **options)

    return call


def key_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate gradients of keys and values, with as many heads as the queries have."""
    shape = q.shape[:-2]
    if k.shape[:-2] == shape:
        return empty_output(k), empty_output(v)
    return k.new_empty(*shape, *k.shape[-2:]), v.new_empty(*shape, *v.shape[-2:])


def sum_shared(dk: Tensor, dv: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sum gradients of keys and values over the heads of queries that share a head of keys, in fp32."""
    if dk.shape == k.shape:
        return dk, dv
    by_kv_head = (x.unflatten(1, (k.shape[1], -1)) for x in (dk, dv))
    dk, dv = (torch.sum(x, 2, out=empty_output(like)) for x, like in zip(by_kv_head, (k, v), strict=True))
    return dk, dv


def ensure_described(x: Tensor) -> Tensor:
    """Return x if a descriptor supports its strides and start, else a contiguous copy."""
    fits = x.data_ptr() % ALIGNMENT == 0 and _strides_fit(x.shape, x.stride(), x.element_size())
    return x if fits else x.clone(memory_format=torch.contiguous_format)


@lru_cache(CACHE_SIZE)
def _strides_fit(shape: torch.Size, strides: tuple[int, ...], element_size: int) -> bool:
    """Whether the last axis is contiguous and the others' strides are positive multiples of 16 bytes."""
    axes = zip(shape[:-1], strides[:-1], strict=True)
    return strides[-1] == 1 and all(n == 1 or (s > 0 and s * element_size % ALIGNMENT == 0) for n, s in axes)


def described_as(shape: torch.Size, strides: tuple[int, ...]) -> dict[str, list[int]]:
    """Shape and strides of the [batch, heads, rows, d] tensor that a descriptor is made for."""
    batch, heads, rows, d = shape_4d(shape)
    # An axis of length 1 may have any stride, but a descriptor needs multiples of 16 bytes, like d here.
    outer = [d if n == 1 else s for n, s in zip((batch, heads, rows), outer_strides(strides), strict=True)]
    return {"shape": [batch, heads, rows, d], "strides": [*outer, 1]}


def shape_4d(shape: torch.Size) -> tuple[int, int, int, int]:
    """Batch, heads, rows, d; one head if the shape has no heads axis."""
    heads = shape[1] if len(shape) == 4 else 1
    return shape[0], heads, shape[-2], shape[-1]


def outer_strides(strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Strides of batch, heads and rows."""
    return (strides[0], strides[1], strides[2]) if len(strides) == 4 else (strides[0], 0, strides[1])


def largest_group(limit: int | None, batch_heads: int) -> int:
    """The largest divisor of the number of heads up to a limit; all heads if there is no limit."""
    limit = batch_heads if limit is None else min(limit, batch_heads)
    return max(size for size in range(1, limit + 1) if batch_heads % size == 0)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
