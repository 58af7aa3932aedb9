"""The weight of a mean loss relative to other micro-batches and ranks: its number of tokens that count."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointFunction

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


def weigh(
    loss: Any, *, alone: bool, unit_of: Callable[[int], Tensor | int]
) -> tuple[Tensor, Tensor | None, Tensor | int]:
    """Return a loss's contribution to the sum over all tokens, its number of tokens, and the unit of the contribution.

    The sum of contributions, divided by the tokens in units, is the mean over all tokens that count. `unit_of` chooses
    a unit for a micro-batch of some tokens: a mean over as many tokens as the unit has is its contribution, exactly. If
    the number of tokens is None, all losses have the same weight.

    The loss is a scalar, or a sum and its number of tokens. If it is the only one (`alone`), a mean needs no weight;
    otherwise a ValueError refuses several means over tokens, and code that may contain one.
    """
    match loss:
        case Tensor():
            _check_scalar(loss)
            loss = _whole(loss)
        case (Tensor() as total, (Tensor() | int() | float()) as count):
            _check_scalar(total)
            unit = unit_of(1)
            return _whole(total) / unit, _as_scalar(count, total.device), unit
        case _:
            kind = type(loss).__name__
            raise TypeError(f"the loss function returned a {kind}; allowed: a scalar tensor, or (sum, count)")
    means, opaque = ([], None) if alone else means_over_tokens(loss)
    if len(means) > 1:
        raise ValueError(f"the loss consists of {len(means)} means over tokens, which may count different {ALLOWED}")
    if opaque and not means:
        raise ValueError(f"the loss is computed by {opaque}, which may ignore {ALLOWED}")
    if not means:
        return loss, None, 1
    ((counted, tokens),) = means
    unit = unit_of(max(1, tokens))
    count = _whole(counted.detach()).float()
    return torch.where(count > 0, loss * (count / unit), 0), count, unit  # a mean over no token is NaN


def means_over_tokens(loss: Tensor) -> tuple[list[tuple[Tensor, int]], str | None]:
    """Find the means over tokens in a loss's graph: for each, the number of tokens that count and the total.

    It recognizes `linear_cross_entropy`, and PyTorch's cross-entropy and nll_loss outside torch.compile. Also returns a
    name of code in the graph that computes a scalar and may contain others: compiled, or a function with its own
    derivative.
    """
    means, opaque, nodes, seen = [], None, [loss.grad_fn], set()
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
            if _is_opaque(node) and any(len(output.shape) == 0 for output in node._input_metadata):
                opaque = "compiled code" if node.name() == COMPILED else node.name().removesuffix("Backward")
            nodes.extend(following for following, _ in node.next_functions)
    return means, opaque


def _is_opaque(node: Any) -> bool:
    """Whether a node may be of any computation: compiled, checkpointed, or of somebody's autograd function."""
    function: Any = getattr(node, "_forward_cls", None)
    known = getattr(function, "__module__", "").partition(".")[0] in ("torch", "cs336_systems")
    is_function = isinstance(node, BackwardCFunction)
    return is_function and (node.name() == COMPILED or function is CheckpointFunction or not known)


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
