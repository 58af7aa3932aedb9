"""Reference attention in float64, written out by its equations, and comparisons with it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch import equal as same  # bound before code under test is imported

from cs336_systems.benchmarks.comparison.refusal import refuse

AttentionCall = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function from q, k, v, [..., sequence, d] each, to the output, like q."""
SCORES = 2**24
"""Approximate number of scores in memory at a time."""
TOLERANCE = {torch.float32: 2.0**-14, torch.bfloat16: 2.0**-4}
"""Allowed errors, relative to the reference. fp32: sums of many terms in any order, but not TF32, which rounds inputs
by about 2**-12. bf16: some roundings of scores, weights and results, each of up to 2**-9."""
RESULTS = ("output", "dq", "dk", "dv")
TF32 = "TF32"
"""The label for fp32 results that are only as exact as TF32."""
OF_USERS = {torch.float32: 2.0**-9, torch.bfloat16: 2.0**-6}
"""The same for users' code. fp32: TF32 is allowed (error up to 2**-10, and marked), bf16 (2**-8.4 or more) is not.
bf16: below the error of one FP8 input, 2**-5.3; plain attention's error is 2**-7."""
PART = 64
"""Approximate number of rows compared at a time, so that an error in a few rows is not lost among many."""


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, grad_o: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute attention and its gradients dq, dk and dv in float64, in the shape of q, k and v: [..., sequence, d].

    A few rows of scores are in memory at a time. Equations 1 to 3 and 13 to 19 of the handout.
    """
    matrices = [x.detach().double().flatten(0, -3) for x in (q, k, v, grad_o)]
    results = [_of_one_head(*inputs, is_causal=is_causal) for inputs in zip(*matrices, strict=True)]
    o, dq, dk, dv = (torch.stack(each).view(q.shape) for each in zip(*results, strict=True))
    return o, dq, dk, dv


def _of_one_head(q: Tensor, k: Tensor, v: Tensor, grad_o: Tensor, *, is_causal: bool) -> tuple[Tensor, ...]:
    """Compute exact_attention of matrices, [sequence, d]."""
    scale = 1 / math.sqrt(q.shape[-1])
    positions = torch.arange(len(q), device=q.device)
    o, dq, dk, dv = (torch.zeros_like(q) for _ in range(4))
    for rows in positions.split(max(1, SCORES // len(k))):
        scores = q[rows] @ k.T * scale
        if is_causal:
            scores.masked_fill_(positions > rows[:, None], -torch.inf)
        p = scores.softmax(-1)
        dp = grad_o[rows] @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        o[rows] = p @ v
        dq[rows] = ds @ k
        dk += ds.T @ q[rows]
        dv += p.T @ grad_o[rows]
    return o, dq, dk, dv


def require_attention(
    call: AttentionCall,
    inputs: Sequence[Tensor],
    *,
    is_causal: bool,
    foreign: bool = False,
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
) -> float:
    """Run an implementation forward and backward once, and compare its results with attention in float64.

    Returns the largest relative error. Wrong results and changed inputs are refused, as those of a third-party library
    if `foreign`.
    """
    before = [x.detach().clone() for x in inputs]
    o = call(*inputs)
    # A subclass of Tensor may compute only when it is read.
    if type(o) is not Tensor or o.shape != inputs[0].shape:
        what = f"of shape {list(o.shape)}" if type(o) is Tensor else f"a {type(o).__name__}"
        refuse(f"its output is {what}, but q has shape {list(inputs[0].shape)}", foreign=foreign)
    grad_o = torch.randn_like(inputs[0], requires_grad=False)
    gradients = torch.autograd.grad(o, inputs, grad_o)
    results = dict(zip(RESULTS, (o.detach(), *gradients), strict=True))
    require_unchanged(inputs, before, foreign=foreign)
    return require_close(results, [*before, grad_o], is_causal=is_causal, foreign=foreign, tolerance=tolerance)


def require_unchanged(inputs: Sequence[Tensor], before: Sequence[Tensor], *, foreign: bool) -> None:
    """Refuse code that has changed q, k or v, or the output's gradient if given."""
    for name, x, old in zip(("q", "k", "v", "grad_o"), inputs, before, strict=False):
        if not same(x, old):
            refuse(f"it changes its {name}", foreign=foreign)


def require_close(
    results: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    *,
    is_causal: bool,
    foreign: bool = False,
    heads: Sequence[int] | None = None,
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
) -> float:
    """Compare some of RESULTS, by name, with float64, given q, k, v and the gradient of the output.

    Returns the largest relative error. Wrong results are refused, as those of a third-party library if `foreign`.
    Only some `heads`, in batch x heads, are compared, or all.
    """
    dtype = inputs[0].dtype
    if heads is not None:
        results = {name: x.flatten(0, -3)[heads] for name, x in results.items()}
        inputs = [x.flatten(0, -3)[heads] for x in inputs]
    exact = dict(zip(RESULTS, exact_attention(*inputs, is_causal=is_causal), strict=True))
    largest = 0.0
    for name, result in results.items():
        if result.dtype != dtype:
            refuse(f"its {name} is {result.dtype}, but its inputs are {dtype}", foreign=foreign)
        worst = largest_error(result, exact[name], inputs[3])
        if heads is not None:
            worst = worst._replace(head=heads[worst.head])
        if not worst.error <= tolerance[dtype]:  # NaN is not close either
            masked = "causal attention" if is_causal else "attention"
            refuse(f"its {worst.off(name, tolerance[dtype])} against {masked}, {worst}", foreign=foreign)
        largest = max(largest, worst.error)
    return largest


class Worst(NamedTuple):
    """The largest relative error, and its location."""

    error: float
    head: int
    """Index of the head in batch x heads."""
    heads: int
    """Number of heads, batch x heads."""
    first: int
    last: int

    def __str__(self) -> str:
        head = f"head {self.head}, " if self.heads > 1 else ""
        return f"largest in {head}rows {self.first} to {self.last}"

    def off(self, name: str, tolerance: float) -> str:
        """Describe the error of a result in words."""
        return f"{name} has a relative error of {self.error:.2g} (tolerance {tolerance:.1g})"


def largest_error(result: Tensor, exact: Tensor, grad_o: Tensor) -> Worst:
    """Find the largest error among parts of a few rows, relative to each part's norm.

    Gradients that cancel out, such as a query's that sees one key, are compared with the norms of their terms.
    """
    rows = exact.shape[-2]
    parts = [x.tensor_split(max(1, rows // PART), dim=-2) for x in (result, exact, grad_o)]
    errors = torch.stack(
        [_relative_errors(x, right, gradient, rows) for x, right, gradient in zip(*parts, strict=True)]
    )
    part, head = divmod(int(errors.argmax()), errors.shape[1])  # which treats NaN as the largest
    lengths = [each.shape[-2] for each in parts[1]]
    first = sum(lengths[:part])
    return Worst(float(errors[part, head]), head, errors.shape[1], first, first + lengths[part] - 1)


def _relative_errors(result: Tensor, exact: Tensor, grad_o: Tensor, rows: int) -> Tensor:
    """Relative errors of one part, [batch x heads]."""
    norm, terms = (x.double().norm(dim=(-2, -1)) for x in (exact, grad_o))
    return ((result.double() - exact).norm(dim=(-2, -1)) / (norm + terms / rows)).flatten()
