"""Problems of attention, and results against float64: for every implementation and all options.

An implementation passes where its error against float64 is at most twice plain PyTorch's in the same precision:
it may round where PyTorch rounds, in another order, and no more.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cs336_systems.attention import flash_attention, flash_attention_varlen
from cs336_systems.attention.options import Options

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A problem: the lengths of its documents (several are packed), its other axes, options."""

    lengths: tuple[tuple[int, int], ...]
    """Queries and keys of each document."""
    d: int = 16
    heads: int | None = 2
    """None: the tensors have no axis of heads."""
    kv_heads: int | None = 2
    is_causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    has_sinks: bool = False
    packed: bool = False
    extra: int = 0
    """Queries, and keys, after the last document."""
    deterministic: bool = False
    batch: tuple[int, ...] = (2,)
    d_v: int | None = None
    scale: float | None = None
    factor: float = 1.0
    """Of q and k, for scores of some hundreds."""
    uses_lse: bool = True
    """Whether the loss is also one of the log-sum-exp."""


def dense(shape, n_keys: int, is_causal: bool, **options) -> Case:
    """A problem without documents and without a gradient of L; q has a shape [*batch, heads, n_queries, d]."""
    *batch, heads, n_queries, d = shape
    options = {"heads": heads, "kv_heads": heads, "uses_lse": False} | options
    return Case(((n_queries, n_keys),), d, is_causal=is_causal, batch=tuple(batch), **options)


def parametrized(core, more, of_core):
    """Cases of lines (batch, heads, n_queries, n_keys, d), dtypes, causal or not; the core has a mark."""
    return [
        pytest.param(
            dense((batch, heads, n_queries, d), n_keys, is_causal),
            dtype,
            id=f"{(batch, heads, n_queries, n_keys, d)} {str(dtype)[6:]} {'causal' if is_causal else 'full'}",
            marks=marks,
        )
        for marks, lines in ((of_core, core), ((), more))
        for (batch, heads, n_queries, n_keys, d), dtypes, is_causal in lines
        for dtype in dtypes
    ]


def make_inputs(case: Case, dtype: torch.dtype, device: str = "cpu") -> Tensors:
    """Random q, k, v, sinks and gradients of o and L; a batch of packed documents is one."""
    generator = torch.Generator().manual_seed(0)
    batch = (1,) if case.packed else case.batch
    n_queries, n_keys = (sum(x) + case.extra for x in zip(*case.lengths, strict=True))
    q_axes, k_axes = (batch if heads is None else (*batch, heads) for heads in (case.heads, case.kv_heads))
    d_v = case.d_v or case.d
    shapes = {
        "q": (*q_axes, n_queries, case.d),
        "k": (*k_axes, n_keys, case.d),
        "v": (*k_axes, n_keys, d_v),
        "do": (*q_axes, n_queries, d_v),
        "dlse": (*q_axes, n_queries),
        "sinks": (case.heads or 0,),
    }
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    inputs["dlse"] *= case.uses_lse
    factors = {"q": case.factor, "k": case.factor}
    dtypes = {"dlse": torch.float32}
    return {name: factors.get(name, 1) * x.to(device, dtypes.get(name, dtype)) for name, x in inputs.items()}


def visible_keys(case: Case, device: torch.device) -> Tensor:
    """Which keys each query sees, [n_queries, n_keys]."""
    n_queries, n_keys = (sum(x) + case.extra for x in zip(*case.lengths, strict=True))
    visible = torch.zeros(n_queries, n_keys, dtype=torch.bool, device=device)
    start_m = start_n = 0
    for queries, keys in case.lengths:
        distance = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
        left, right = case.window_size
        sees = distance <= 0 if case.is_causal else torch.ones_like(distance, dtype=torch.bool)
        sees &= distance >= (-left if left >= 0 else -queries)
        sees &= distance <= (right if right >= 0 else keys)
        visible[start_m : start_m + queries, start_n : start_n + keys] = sees
        start_m, start_n = start_m + queries, start_n + keys
    return visible


def reference(case: Case, inputs: Tensors, dtype: torch.dtype) -> Tensors:
    """Output, L and gradients by autograd through the formula, with whole matrices, in a dtype."""
    names = ("q", "k", "v", "sinks") if case.has_sinks else ("q", "k", "v")
    leaves = {name: inputs[name].detach().to(dtype).requires_grad_() for name in names}
    q, k, v = (leaves[name] for name in "qkv")
    if case.heads != case.kv_heads:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, -3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (case.scale or 1 / math.sqrt(case.d))
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    visible = visible_keys(case, q.device)
    sees = visible.any(-1)
    scores = scores.masked_fill(~visible & sees[:, None], -torch.inf)  # no derivative of a sum of nothing
    if case.has_sinks:
        scores = scores.masked_fill(~visible, -torch.inf)
        all_scores = torch.cat((scores, leaves["sinks"][:, None, None].expand(*scores.shape[:-1], 1)), -1)
        o, lse = all_scores.softmax(-1)[..., :-1] @ v, all_scores.logsumexp(-1)
    else:
        o, lse = scores.softmax(-1) @ v * sees[:, None], scores.logsumexp(-1).masked_fill(~sees, -torch.inf)
    gradients = torch.autograd.grad((o, lse), [*leaves.values()], (inputs["do"].to(dtype), inputs["dlse"].to(dtype)))
    return named(o.detach(), lse.detach(), *gradients)


def named(*results: Tensor) -> Tensors:
    """Results by name: o, L, and gradients of q, k, v and sinks."""
    return dict(zip(("o", "lse", "dq", "dk", "dv", "dsinks"), results, strict=False))


def without_lse(o: Tensor, *gradients: Tensor) -> Tensors:
    """Results of a call that does not return L."""
    return dict(zip(("o", "dq", "dk", "dv", "dsinks"), (o.detach(), *gradients), strict=False))


def bounds(case: Case, device: str = "cpu") -> list[Tensor]:
    """cu_seqlens_q and cu_seqlens_k."""
    lengths = torch.tensor([(0, 0), *case.lengths])
    return list(lengths.cumsum(0).to(device, torch.int32).unbind(1))


def results(case: Case, inputs: Tensors, wrap=lambda function: function, **more) -> Tensors:
    """Results of flash_attention or flash_attention_varlen, each wrapped, as by torch.compile; L only if it is used."""
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    sinks = inputs["sinks"].detach().requires_grad_() if case.has_sinks else None
    options = {"window_size": case.window_size, "softcap": case.softcap, "sinks": sinks, "enable_gqa": True}
    options |= {"deterministic": case.deterministic, "scale": case.scale, "return_lse": case.uses_lse} | more
    wanted = leaves if sinks is None else [*leaves, sinks]
    if case.packed:
        flat = [x[0].transpose(0, 1) for x in leaves]
        ends = bounds(case, flat[0].device)
        o, lse = wrap(flash_attention_varlen)(*flat, *ends, is_causal=case.is_causal, **options)
        o, lse = o.transpose(0, 1)[None], lse[None]
    elif case.uses_lse:
        o, lse = wrap(flash_attention)(*leaves, case.is_causal, **options)
    else:
        o = wrap(flash_attention)(*leaves, case.is_causal, **options)
        return without_lse(o, *torch.autograd.grad(o, wanted, inputs["do"].to(o.dtype)))
    return named(o.detach(), lse.detach(), *torch.autograd.grad((o, lse), wanted, (inputs["do"], inputs["dlse"])))


def function_results(function, case: Case, inputs: Tensors) -> Tensors:
    """Results of an autograd.Function, with L as it was saved for backward."""
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    o = function.apply(*leaves, case.is_causal)
    saved = [x for x in o.grad_fn.saved_tensors if x.shape == inputs["dlse"].shape]
    assert len(saved) == 1, "exactly one saved tensor has the shape of L"
    return named(o.detach(), saved[0], *torch.autograd.grad(o, leaves, inputs["do"]))


def launch_results(launch, case: Case, inputs: Tensors, forward_tiles=None, **backward) -> Tensors:
    """Results of kernels, by the module that launches them, for inputs that they accept as they are."""
    packed = bounds(case, inputs["q"].device) if case.packed else (None, None)
    sinks = inputs["sinks"] if case.has_sinks else None
    options = Options(
        case.is_causal, case.scale, *case.window_size, case.softcap or None, case.deterministic, sinks, *packed
    )
    q, k, v, do, dlse, _ = inputs.values()
    o, lse = launch.attention_forward(q, k, v, options, tiles=forward_tiles)
    dlse = dlse if case.uses_lse else None
    return named(o, lse, *launch.attention_backward(do, q, k, v, o, lse, dlse, options, **backward))


def excess(case: Case, inputs: Tensors, got: Tensors) -> dict[str, str]:
    """The results whose error is more than twice PyTorch's, empty if all is well; L where it is -inf must be.

    Two roundings of the result are also allowed, for PyTorch being exact by luck. With one query or one key it is four
    roundings of a number of order one, an element and a term: there dQ and dK are zero, or nearly, as sums of
    differences of such numbers, and what is left is their rounding. With large scores the gradients may also be off by
    the rounding of L, which any backward pass inherits that starts from L: PyTorch's starts from the saved softmax.
    """
    want, plain = reference(case, inputs, torch.float64), reference(case, inputs, inputs["q"].dtype)
    nothing = want["lse"] == -torch.inf
    if "lse" in got and not torch.equal(got["lse"] == -torch.inf, nothing):
        return {"lse": "-inf elsewhere"}
    lengths = [n for both in case.lengths for n in both]
    narrow = 1 in lengths or case.window_size == (0, 0)
    large = want["lse"].abs().max().item() if case.factor > 1 or (case.scale or 0) > 1 else 0.0
    bad = {}
    for name, value in got.items():
        hidden = nothing if name == "lse" else torch.zeros((), dtype=torch.bool, device=value.device)
        value, exact, theirs = (x.double().masked_fill(hidden, 0) for x in (value, want[name], plain[name]))
        eps = torch.finfo(got[name].dtype).eps
        rounding = max(2 * eps * exact.norm().item(), 4 * eps * (narrow * value.numel() * max(lengths)) ** 0.5)
        if name.startswith("d"):
            rounding += large * torch.finfo(torch.float32).eps * exact.norm().item()
        allowed = 2 * (theirs - exact).norm().item() + rounding
        actual = (value - exact).norm().item()
        if not actual <= allowed:  # also catches NaN
            bad[name] = f"{actual:.2e} > {allowed:.2e}"
    return bad


def check(case: Case, dtype: torch.dtype, device: str = "cpu", compute=results) -> None:
    """Check that no result, computed from random inputs, has an excess error."""
    inputs = make_inputs(case, dtype, device)
    bad = excess(case, inputs, compute(case, inputs))
    assert not bad, bad


INFINITE = {"first keys": slice(0, 70), "middle keys": slice(5, 100), "every key": slice(None)}
"""Keys whose scores are -inf: more than a tile of them, and with a causal mask whole rows."""


def differences_where_scores_are_infinite(compute, keys: str, is_causal, dtype, device="cpu", d=16) -> list[str]:
    """The results that differ from SDPA's in float64 by more than roundings, with NaN in the same places."""
    case = Case(((130, 130),), d, is_causal=is_causal, batch=(1,))
    inputs = make_inputs(case, dtype, device)
    inputs["q"], inputs["dlse"] = inputs["q"].abs(), torch.zeros_like(inputs["dlse"])
    inputs["k"][:, :, INFINITE[keys]] = -torch.inf
    got = compute(case, inputs)
    leaves = [inputs[name].double().cpu().requires_grad_() for name in ("q", "k", "v")]
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
    scores = leaves[0] @ leaves[1].transpose(-2, -1) / math.sqrt(d)
    lse = scores.masked_fill(~visible_keys(case, scores.device), -torch.inf).logsumexp(-1)
    want = named(o.detach(), lse.detach(), *torch.autograd.grad(o, leaves, inputs["do"].double().cpu()))
    for name in ("dk", "dv"):  # of the infinite keys themselves they are 0 or NaN: kernels multiply them by padding
        got[name][:, :, INFINITE[keys]] = want[name][:, :, INFINITE[keys]] = 0
    tolerance = {"rtol": 64 * torch.finfo(dtype).eps, "atol": 64 * torch.finfo(dtype).eps, "equal_nan": True}
    return [name for name, x in got.items() if not torch.allclose(x.double().cpu(), want[name], **tolerance)]
