"""Windows, softcap and packed documents in the Triton kernels. Absent options are None and are compiled away."""

import triton
import triton.language as tl

DOCUMENTS_AT_ONCE = tl.constexpr(1024)
LOG2_E = tl.constexpr(1.4426950408889634)
HAS_TANH = tl.constexpr(not triton.knobs.runtime.interpret)
"""Whether the instruction for tanh exists: the interpreter runs no assembly."""


@triton.jit
def cap_scores(
    scores,  # fp32, unscaled
    softmax_scale,  # in any unit of the logarithm
    softcap,  # in the same unit; None for none
    IS_FP32: tl.constexpr,  # dtype of the inputs
):
    """Compute scores and their factor: unchanged, or tanh(softmax_scale S / softcap) and softcap."""
    if softcap is not None:
        scores = _tanh(scores * (softmax_scale / softcap), not IS_FP32 and HAS_TANH)
        softmax_scale = softcap
    return scores, softmax_scale


@triton.jit
def _tanh(x, APPROXIMATE: tl.constexpr):
    """Compute tanh: in one instruction, with a relative error of 2^-11, or to fp32 accuracy."""
    if APPROXIMATE:
        result = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        # 1 - 2 / (exp(2 |x|) + 1) cancels near zero; there a polynomial is accurate to one rounding.
        size = tl.abs(x)
        y = x * x
        series = -0.33333331 + y * (0.13332924 + y * (-0.05387514 + y * (0.021116216 - y * 0.00627639)))
        large = 1 - 2 / (tl.exp2(size * (2 * LOG2_E)) + 1)
        result = tl.where(size < 0.55, x + x * y * series, tl.where(x < 0, -large, large))
    return result


@triton.jit
def visible_keys(
    start_m,  # first query of the tile
    n_keys,
    window_left,  # None for an unlimited side, like window_right
    window_right,
    BLOCK_M: tl.constexpr,  # queries
    BLOCK_N: tl.constexpr,  # keys of a tile, which begin at multiples of it
    IS_CAUSAL: tl.constexpr,
):
    """Compute begin, begin_unmasked, end_unmasked and end of the keys that queries see.

    Keys begin_unmasked ... end_unmasked are visible to every query, the others only to some.
    """
    begin = 0
    begin_unmasked = 0
    end = n_keys
    end_unmasked = n_keys // BLOCK_N * BLOCK_N
    if IS_CAUSAL:
        end = tl.minimum(n_keys, start_m + BLOCK_M)
        end_unmasked = tl.minimum(end_unmasked, (start_m + 1) // BLOCK_N * BLOCK_N)
    if window_right is not None:
        end = tl.minimum(n_keys, start_m + BLOCK_M + window_right)
        end_unmasked = tl.minimum(end_unmasked, (start_m + 1 + window_right) // BLOCK_N * BLOCK_N)
    if window_left is not None:
        begin = tl.maximum(start_m - window_left, 0) // BLOCK_N * BLOCK_N
        begin_unmasked = tl.cdiv(tl.maximum(start_m + BLOCK_M - 1 - window_left, 0), BLOCK_N) * BLOCK_N
        end_unmasked = tl.maximum(end_unmasked, begin)
        begin_unmasked = tl.minimum(begin_unmasked, end_unmasked)
    return begin, begin_unmasked, end_unmasked, end


@triton.jit
def visible_queries(
    start_n,  # first key of the tile
    n_queries,
    n_keys,
    window_left,
    window_right,
    BLOCK_M: tl.constexpr,  # queries of a tile, which begin at multiples of it
    BLOCK_N: tl.constexpr,  # keys
    IS_CAUSAL: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Compute begin, begin_unmasked, end_unmasked and end of the queries that see keys, as in visible_keys.

    An incomplete tile of queries needs no mask unless another document's queries follow.
    """
    begin = 0
    begin_unmasked = 0
    end = n_queries
    if window_left is not None:
        end = tl.minimum(n_queries, start_n + BLOCK_N + window_left)
    if IS_CAUSAL:
        begin = start_n // BLOCK_M * BLOCK_M
        begin_unmasked = tl.minimum(tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M, end)
    if window_right is not None:
        begin = tl.maximum(start_n - window_right, 0) // BLOCK_M * BLOCK_M
        begin_unmasked = tl.cdiv(tl.maximum(start_n + BLOCK_N - 1 - window_right, 0), BLOCK_M) * BLOCK_M
        begin_unmasked = tl.minimum(begin_unmasked, end)
    if start_n + BLOCK_N > n_keys:
        begin_unmasked = end
    end_unmasked = end
    if PACKED:
        end_unmasked = n_queries // BLOCK_M * BLOCK_M
    if window_left is not None:
        end_unmasked = tl.minimum(end_unmasked, (start_n + 1 + window_left) // BLOCK_M * BLOCK_M)
    if PACKED or window_left is not None:
        end_unmasked = tl.minimum(tl.maximum(end_unmasked, begin_unmasked), end)
    return begin, begin_unmasked, end_unmasked, end


@triton.jit
def is_visible(
    offs_m,  # queries and keys, broadcastable to scores
    offs_n,
    n_keys,
    window_left,
    window_right,
    IS_CAUSAL: tl.constexpr,
):
    """Compute the mask of a tile of scores."""
    visible = offs_n < n_keys
    if IS_CAUSAL:
        visible &= offs_n <= offs_m
    if window_right is not None:
        visible &= offs_n <= offs_m + window_right
    if window_left is not None:
        visible &= offs_n >= offs_m - window_left
    return visible


@triton.jit
def locate_in_documents(
    tile,  # one of total // BLOCK + documents + 1; some are empty
    ends,  # pointer, [documents + 1] int32: cu_seqlens of the sequence whose tiles these are
    other_ends,  # pointer, of the other sequence
    documents,
    total,  # rows of the first sequence
    BLOCK: tl.constexpr,  # rows of a tile
):
    """Compute a tile's first row within its document, and that document's first row and length in both sequences.

    Document i has the tiles from ends[i] // BLOCK + i on. Rows after the last document count as a document that is
    empty in the other sequence. For an empty tile the other sequence counts as empty.
    """
    document = -1
    for first in tl.range(0, documents + 1, DOCUMENTS_AT_ONCE):
        numbers = first + tl.arange(0, DOCUMENTS_AT_ONCE)
        starts = tl.load(ends + numbers, mask=numbers <= documents, other=2147483647)
        document += tl.sum((starts // BLOCK + numbers <= tile).to(tl.int32))
    first = tl.load(ends + document)
    n_rows = tl.load(ends + document + 1, mask=document < documents, other=total) - first
    other_first = tl.load(other_ends + document)
    n_other = tl.load(other_ends + document + 1, mask=document < documents, other=0) - other_first
    start = (tile - first // BLOCK - document) * BLOCK
    n_other = tl.where((document < documents) & (start < n_rows), n_other, 0)
    return start, first, n_rows, other_first, n_other


@triton.jit
def zero_rows_from(tile, end, BLOCK: tl.constexpr):
    """Replace rows from an end on with zeros: they belong to other documents, whose infinities must not be
    multiplied.
    """
    return tl.where(tl.arange(0, BLOCK)[:, None] < end, tile, tl.zeros_like(tile))
