"""The weight of a mean loss relative to other micro-batches and ranks: its number of tokens that count."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

NLL = ("NllLossBackward0", "NllLoss2DBackward0")
"""Nodes of PyTorch's cross-entropy for class indices."""
COMPILED = "CompiledFunctionBackward"
"""The graph node of code compiled by torch.compile, which is opaque."""
MEAN = 1
"""Their `reduction`, as a number."""
ALLOWED = (
    "tokens; allowed: one mean outside torch.compile, or returning (sum, count); (loss, 1) weights all "
    "micro-batches and ranks alike"
)


def weigh(loss: Any, *, alone: bool) -> tuple[Tensor, Tensor | None]:
    """Return a loss's contribution to the weighted sum of losses, and its weight; None: all have the same weight.

    The sum, divided by the sum of weights, is the mean over all tokens that count. A weight is the fraction of a
    micro-batch's tokens that count, so it is exactly 1 if none is ignored. The loss is a scalar, or a sum and its
    number of tokens. If it is the only one (`alone`), a mean needs no weight; otherwise a ValueError refuses several
    means over tokens, and compiled code.
    """
    match loss:
        case Tensor():
            _check_scalar(loss)
            loss = _whole(loss)
        case (Tensor() as total, (Tensor() | int() | float()) as count):
            _check_scalar(total)
            return _whole(total), _as_scalar(count, total.device)
        case _:
            kind = type(loss).__name__
            raise TypeError(f"the loss function returned a {kind}; allowed: a scalar tensor, or (sum, count)")
    means, compiled = ([], False) if alone else means_over_tokens(loss)
    if len(means) > 1:
        raise ValueError(f"the loss consists of {len(means)} means over tokens, which may count different {ALLOWED}")
    if compiled and not means:
        raise ValueError(f"the loss is computed by compiled code, which may ignore {ALLOWED}")
    if not means:
        return loss, None
    ((counted, tokens),) = means
    weight = _whole(counted.detach()).float() / max(1, tokens)
    return torch.where(weight > 0, loss * weight, 0), weight  # a mean over no token is NaN


def means_over_tokens(loss: Tensor) -> tuple[list[tuple[Tensor, int]], bool]:
    """Find the means over tokens in a loss's graph: for each, the number of tokens that count and the total.

    It recognizes `linear_cross_entropy`, and PyTorch's cross-entropy and nll_loss outside torch.compile. Also returns
    whether compiled code computes a scalar in the graph, which may contain others.
    """
    means, compiled, nodes, seen = [], False, [loss.grad_fn], set()
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "counted_tokens"):
            means.append(node.counted_tokens)
        elif node.name() in NLL and node._saved_reduction == MEAN:
            means.append((node._saved_total_weight, node._saved_target.numel()))
        else:
            compiled |= node.name() == COMPILED and any(len(output.shape) == 0 for output in node._input_metadata)
            nodes.extend(following for following, _ in node.next_functions)
    return means, compiled


def _check_scalar(loss: Tensor) -> None:
    if loss.numel() != 1:
        raise ValueError(f"the loss has shape {list(loss.shape)}; allowed: a scalar")


def _whole(number: Tensor) -> Tensor:
    return number.full_tensor() if isinstance(number, DTensor) else number


def _as_scalar(count: Tensor | float, device: torch.device) -> Tensor:
    if isinstance(count, Tensor):
        _check_scalar(count)
        return _whole(count.detach()).to(device, torch.float32).view(())
    return torch.full((), count, dtype=torch.float32, device=device)  # a copy from the host could not be captured
