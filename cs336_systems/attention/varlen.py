"""flash_attention_varlen: attention within packed documents of any lengths."""

from typing import Literal, Unpack, overload

from torch import Tensor

from cs336_systems.attention.autocast import autocast_inputs
from cs336_systems.attention.flash import Keywords, attend, check
from cs336_systems.attention.options import Options, check_documents, parse_options, shown


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    is_causal: bool = ...,
    *,
    return_lse: Literal[False] = ...,
    **more: Unpack[Keywords],
) -> Tensor: ...


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    is_causal: bool = ...,
    *,
    return_lse: Literal[True],
    **more: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute flash_attention within each of several packed documents.

    Nothing is read back from a GPU: the kernels look up the documents. Documents may be empty, and bounds may repeat at
    the end. Queries after the last document see no key: their output is zero. Bounds that decrease or exceed the tokens
    raise an error on a CPU; on a GPU, where they are not read back, they give wrong results. Arguments not listed here
    are as in flash_attention.

    Args:
        q: queries, [total_q, heads, d], bf16, fp16 or fp32, any strides.
        k: keys, [total_k, heads, d]; fewer heads with enable_gqa.
        v: values, [total_k, heads, d_v].
        cu_seqlens_q: int32, [documents + 1], on the device of q: the first query of each document, and the end of the
            last.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: like max_seqlen_k, accepted as in flash_attn_varlen_func, but not needed.
        is_causal: within each document, query i sees keys j <= i only.
        window_size: as for flash_attention, within each document.

    Returns:
        [total_q, heads, d_v] and, with return_lse, also [heads, total_q] fp32.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: shapes, dtypes, devices or bounds are not supported.
        NotImplementedError: a derivative is not supported.
    """
    q, k, v = autocast_inputs(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ValueError(f"{name} must be [tokens, heads, d], got shape {list(x.shape)}.")
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if length is not None and not isinstance(length, int):
            raise TypeError(f"{name} must be a number of tokens or None, got {shown(length)}.")
    check_documents(q, k, cu_seqlens_q, cu_seqlens_k)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    check(q, k, v, is_causal, scale, enable_gqa)
    mask = Options(is_causal, scale)
    options = parse_options(mask, q, window_size, softcap, sinks, deterministic, q.shape[1])
    options = options._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    o, lse = attend(q, k, v, options, enable_gqa, return_lse)
    return (o[0].transpose(0, 1), lse[0]) if return_lse else o[0].transpose(0, 1)
