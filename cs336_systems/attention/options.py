"""Options of attention: masks, scale, sliding windows, softcap, sinks, packed documents."""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OPEN = -1
"""An unlimited side of a window."""


class Options(NamedTuple):
    """Options that the operators accept."""

    is_causal: bool = False
    """Query i sees keys j <= i only."""
    scale: float | None = None
    """Factor of the scores; 1 / √d if None."""
    window_left: int = OPEN
    """How many positions before its own a query sees keys."""
    window_right: int = OPEN
    """How many positions after its own a query sees keys."""
    softcap: float | None = None
    """Scaled scores s become softcap · tanh(s / softcap), unless it is None."""
    deterministic: bool = False
    """Whether the backward pass is bitwise reproducible."""
    sinks: Tensor | None = None
    """An extra score per query of a head with a value of zero: [heads]."""
    cu_seqlens_q: Tensor | None = None
    """The first query of each packed document, and the end of the last, int32."""
    cu_seqlens_k: Tensor | None = None
    """The same for keys."""

    @property
    def documents(self) -> int | None:
        """Number of packed documents; None without packing."""
        return None if self.cu_seqlens_q is None else len(self.cu_seqlens_q) - 1

    @property
    def only_mask(self) -> bool:
        """Whether nothing but is_causal and scale is given."""
        tensors = self[-TENSORS:]
        return self[2:-TENSORS] == DEFAULTS[2:-TENSORS] and all(x is None for x in tensors)


SCHEMA = (
    "bool is_causal=False, float? scale=None, int window_left=-1, int window_right=-1, float? softcap=None, "
    "bool deterministic=False, Tensor? sinks=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None"
)
"""Options as the operators' last arguments."""
TENSORS = 3
"""Number of options that are tensors; they come last."""
DEFAULTS = Options()


class Variant(NamedTuple):
    """The options that kernels are compiled and launched for, without their tensors."""

    options: Options = DEFAULTS
    sinks: torch.dtype | None = None
    documents: int | None = None
    """Number of packed documents; None without packing."""

    @property
    def has_tensors(self) -> bool:
        """Whether kernels are passed sinks or the bounds of documents."""
        return self.sinks is not None or self.documents is not None

    def typical(self, shape: torch.Size) -> torch.Size:
        """The shape for which tiles are chosen: for packed documents, a batch of the mean length."""
        if not self.documents:
            return shape
        _, heads, total, d = shape
        return torch.Size((self.documents, heads, -(-total // self.documents), d))

    def count_tiles(self, n: int, block: int) -> int:
        """Number of tiles for n rows; each packed document may end in a separate tile, and so may the rows after the
        last one.
        """
        return -(-n // block) if self.documents is None else n // block + self.documents + 1


def split_tensors(options: Options) -> tuple[Variant, tuple[Tensor | None, ...]]:
    """Split options into a variant and contiguous tensors: none, or sinks and the bounds of documents."""
    sinks, cu_seqlens_q, cu_seqlens_k = options.sinks, options.cu_seqlens_q, options.cu_seqlens_k
    if sinks is None and cu_seqlens_q is None:
        return Variant(options), ()
    numbers = options._replace(sinks=None, cu_seqlens_q=None, cu_seqlens_k=None)
    tensors = [None if x is None else x.contiguous() for x in (sinks, cu_seqlens_q, cu_seqlens_k)]
    return Variant(numbers, None if sinks is None else sinks.dtype, options.documents), tuple(tensors)


class Window(NamedTuple):
    """Keys that query i sees: from i - left to i + right; None is an unlimited side."""

    left: int | None
    right: int | None


def window_of(options: Options, n_queries: int, n_keys: int) -> Window:
    """Combine a causal mask with a window; a side that reaches beyond the sequences is unlimited."""
    left, right = options.window_left, 0 if options.is_causal else options.window_right
    return Window(left if 0 <= left < n_queries else None, right if 0 <= right < n_keys else None)


def documents(options: Options, n_queries: int, n_keys: int) -> list[tuple[slice, slice]]:
    """Return the queries and the keys of each packed document, or all of them if none are packed.

    Rows after the last document form two more documents: queries without keys, and keys without queries.

    Raises:
        ValueError: bounds are not in order, or beyond the tensors' ends.
    """
    if options.cu_seqlens_q is None:
        return [(slice(None), slice(None))]
    queries = _slices("cu_seqlens_q", options.cu_seqlens_q, n_queries)
    keys = _slices("cu_seqlens_k", options.cu_seqlens_k, n_keys)
    rest_q, rest_k = slice(queries[-1].stop, n_queries), slice(keys[-1].stop, n_keys)
    return [*zip(queries, keys, strict=True), (rest_q, slice(0, 0)), (slice(0, 0), rest_k)]


def _slices(name: str, bounds: Tensor | None, tokens: int) -> list[slice]:
    assert bounds is not None
    values = bounds.tolist()
    if values[0] != 0 or values[-1] > tokens or any(a > b for a, b in pairwise(values)):
        raise ValueError(f"{name} must start with 0, never decrease, and end at most at {tokens} tokens, got {values}.")
    return [slice(a, b) for a, b in pairwise(values)]


def sink_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """Compute the gradient of sinks, [heads], from L and D, [batch, heads, n_queries].

    A sink's value is zero, so its dS is -P D, where P = exp(sink - L).
    """
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    p = torch.exp(sinks.to(lse.dtype)[:, None] - lse)
    return -(p * delta).sum((0, 2)).to(sinks.dtype)


def parse_options(
    mask: Options,
    q: Tensor,
    window_size: object,
    softcap: object,
    sinks: Tensor | None,
    deterministic: bool,
    heads: int | None,
) -> Options:
    """Check a user's options, and return them as the operators accept them.

    Args:
        mask: is_causal and scale, already checked.
        q: queries, on whose device sinks must be.
        window_size: (left, right), each a number of keys or -1 for unlimited; None for no window.
        softcap: a positive number; 0 or None for none.
        sinks: [heads], bf16, fp16 or fp32; None for none.
        deterministic: whether the backward pass must be bitwise reproducible.
        heads: number of heads of q; None if it has no axis of heads.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option's value, shape, dtype or device is not supported.
    """
    left, right = _parse_window(window_size)
    if deterministic is not True and deterministic is not False:
        raise TypeError(f"deterministic must be True or False, got {shown(deterministic)}.")
    if not (softcap is None or (isinstance(softcap, (int, float)) and 0 <= softcap < math.inf)):
        raise ValueError(f"softcap must be a positive number, or 0 or None for none, got {shown(softcap)}.")
    if sinks is not None:
        _check_sinks(sinks, q, heads)
    return Options(mask.is_causal, mask.scale, left, right, float(softcap) if softcap else None, deterministic, sinks)


def _parse_window(window_size: object) -> tuple[int, int]:
    """Check window_size, and return its sides, -1 for an unlimited one."""
    sides = window_size if isinstance(window_size, (tuple, list)) else (window_size,) * 2
    sides = [OPEN if side is None else side for side in sides]
    if isinstance(window_size, int) or len(sides) != 2 or not all(type(x) is int and x >= OPEN for x in sides):
        raise ValueError(
            "window_size must be (left, right), each a number of keys from 0, or -1 for unlimited, got "
            f"{shown(window_size)}."
        )
    return sides[0], sides[1]


def _check_sinks(sinks: object, q: Tensor, heads: int | None) -> None:
    if not isinstance(sinks, Tensor):
        raise TypeError(f"sinks must be a tensor or None, got {shown(sinks)}.")
    if heads is None or sinks.shape != (heads,):
        wanted = f"[{heads}], one number for each head of q" if heads else "[heads], and q [..., heads, n_queries, d]"
        raise ValueError(f"sinks must be {wanted}, got sinks {list(sinks.shape)} and q {list(q.shape)}.")
    if sinks.dtype not in DTYPES:
        raise ValueError(f"sinks must be bfloat16, float16 or float32, got {sinks.dtype}.")
    if sinks.device != q.device:
        raise ValueError(f"sinks must be on the device of q, got {sinks.device} and q on {q.device}.")


def check_documents(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    """Check the bounds of packed documents except their values, since reading them would synchronize.

    Raises:
        TypeError: bounds are not a tensor.
        ValueError: their shapes, dtypes or devices are not supported.
    """
    for name, bounds, x in (("cu_seqlens_q", cu_seqlens_q, q), ("cu_seqlens_k", cu_seqlens_k, k)):
        if not isinstance(bounds, Tensor):
            raise TypeError(f"{name} must be a tensor, got {shown(bounds)}.")
        if bounds.dtype != torch.int32 or bounds.dim() != 1 or len(bounds) < 2:
            raise ValueError(
                f"{name} must be int32, [documents + 1], for at least one document, got {bounds.dtype}, "
                f"{list(bounds.shape)}."
            )
        if bounds.device != x.device:
            raise ValueError(f"{name} must be on the device of q and k, got {bounds.device} and {x.device}.")
    if len(cu_seqlens_q) != len(cu_seqlens_k):
        lengths = f"got {len(cu_seqlens_q)} and {len(cu_seqlens_k)} numbers"
        raise ValueError(f"cu_seqlens_q and cu_seqlens_k must bound the same number of documents, {lengths}.")


def shown(value: object) -> str:
    """Format an argument's value for an error message."""
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
