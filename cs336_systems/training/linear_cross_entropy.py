"""Cross-entropy of a linear output layer, without all logits in memory."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from cs336_systems.attention.autocast import autocast_inputs, without_autocast
from cs336_systems.attention.differentiation import only_once
from cs336_systems.parallel.as_forward import as_forward
from cs336_systems.training.dispatch import HAS_TRITON, check_whole, needs_operators, runs_kernels

if HAS_TRITON:
    from cs336_systems.training.triton_cross_entropy import cross_entropy_in_place, scale_in_place

DTYPES = (torch.bfloat16, torch.float32)
LOGITS_BYTES = 512 * 2**20
"""Memory for the logits of one chunk of tokens."""
ROW = 64
"""Alignment of a token's logits in elements, so that vector loads work for any vocabulary."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor | nn.Module,
    targets: Tensor,
    chunk: int | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Compute the cross-entropy of the logits hidden @ weight.T, one chunk of tokens at a time.

    The gradients are computed in the forward pass: once a chunk's logits are ready, one kernel turns them into their
    own gradient, and the matmuls for the gradients of hidden and weight follow. Only one chunk's logits are in memory
    at a time. The weight's gradient is accumulated over chunks in fp32. Under torch.compile it runs eagerly.

    Args:
        hidden: [..., d], bf16 or fp32; under autocast, hidden and weight are cast as for a linear layer.
        weight: [vocabulary, d], of the same dtype; may be shared with an embedding. A linear layer is accepted too: it
            is called with this loss instead of its matmul, so that its hooks run. The hooks of a
            FullyShardedDataParallel or of fully_shard gather the weight.
        targets: integers of any width in [0, vocabulary), or ignore_index, of the shape [...]. On a GPU another target
            makes the loss and its token's gradients NaN; on a CPU it is an error.
        chunk: tokens per chunk; by default as many as fit into 512 MiB of logits.
        ignore_index: target of tokens that do not count.
        reduction: "mean" or "sum" over the tokens that count. If your own loop adds up the gradients of micro-batches,
            divide their sums by the number of tokens that count in all of them: a mean of means would weight tokens
            differently. `CapturedStep` weights means automatically.

    Returns:
        an fp32 scalar; a mean is NaN, with gradients of zero, if no token counts.

    Raises:
        TypeError: weight is a module but not a linear layer.
        ValueError: shapes, dtypes or devices do not match, chunk is not positive, reduction is unknown, the weight is
            sharded, or the layer has a bias.
        RuntimeError: backward runs twice through the same loss.
        NotImplementedError: its gradients are differentiated (create_graph=True). Inside transforms of torch.func, such
            as grad and vmap, the loss is computed with all logits and has all derivatives.

    Source: the idea is Liger-Kernel's FusedLinearCrossEntropy (Hsu et al. 2024).
    """
    if isinstance(weight, nn.Module):
        return _of_layer(hidden, weight, targets, chunk, ignore_index, reduction)
    check_whole("linear_cross_entropy", hidden, weight)
    hidden, weight = autocast_inputs(hidden, weight)
    _check(hidden, weight, targets, chunk)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; allowed: 'mean' and 'sum'")
    targets = targets.flatten().long()
    if needs_operators(hidden, weight, targets):
        logits = nn.functional.linear(hidden, weight).flatten(0, -2).float()
        return nn.functional.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)
    tokens, vocabulary = targets.numel(), len(weight)
    if chunk is None:
        chunk = max(1, LOGITS_BYTES // (_padded(vocabulary) * hidden.element_size()))
    # As few chunks as possible, of equal sizes.
    chunks = max(1, -(-tokens // chunk))
    x, y = hidden.flatten(0, -2), targets.contiguous()
    arguments = x, weight, y, max(1, -(-tokens // chunks)), ignore_index, reduction == "mean"
    # The compiler must not rearrange the kernel launches and the gradients' reuse of memory.
    apply = torch.compiler.disable(_apply) if torch.compiler.is_compiling() else _apply
    loss: Tensor = apply(*arguments)
    return loss


def _of_layer(hidden: Tensor, layer: nn.Module, *arguments: Any) -> Tensor:
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"weight is a {type(layer).__name__}; allowed: a tensor, or the Linear that has it")
    if layer.bias is not None:
        raise ValueError("the layer has a bias; allowed: a Linear with bias=False")
    with as_forward(layer, lambda x: linear_cross_entropy(x, layer.weight, *arguments)):
        loss: Tensor = layer(hidden)
        return loss


def _apply(*arguments: Any) -> Tensor:
    return _LinearCrossEntropy.apply(*arguments, torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    """apply(hidden [tokens, d], weight, targets [tokens], chunk, ignore_index, mean or sum, gradients are wanted)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk: int,
        ignore_index: int,
        mean: bool,
        wanted: bool,
    ) -> Tensor:
        need_hidden, need_weight = (wanted and needed for needed in ctx.needs_input_grad[:2])
        tokens, vocabulary = len(targets), len(weight)
        several = chunk < tokens
        logits = hidden.new_empty(min(chunk, tokens), _padded(vocabulary))[:, :vocabulary]
        counted = (targets != ignore_index).sum()
        if mean:
            ctx.counted_tokens = counted, tokens  # see token_weights
        factor = 1 / counted.float() if mean else torch.ones((), device=hidden.device)
        losses = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format) if need_hidden else None
        grad_weight = None
        if need_weight:
            grad_weight = torch.empty_like(weight, dtype=torch.float32 if several else None)
        with without_autocast(hidden):
            for start in range(0, tokens, chunk):
                part = slice(start, start + chunk)
                x, y = hidden[part], targets[part]
                z = logits[: len(x)]
                torch.mm(x, weight.T, out=z)
                _gradients_in_place(z, y, factor, losses[part], ignore_index, need_hidden or need_weight)
                if grad_hidden is not None:
                    torch.mm(z, weight, out=grad_hidden[part])
                if grad_weight is not None:
                    _add_matmul(grad_weight, z.T, x, first=start == 0)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype) if tokens else grad_weight.zero_()
        ctx.gradients = grad_hidden, grad_weight
        loss = losses.sum() * factor
        ctx.save_for_backward(loss)  # not the inputs, which may be freed
        return loss

    @staticmethod
    @only_once("linear_cross_entropy")
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "linear_cross_entropy cannot run backward twice: its gradients are computed once, in place"
            )
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is None:
                continue
            if runs_kernels(gradient):
                scale_in_place(gradient, grad_loss)
            else:
                gradient.mul_(grad_loss)
        return *gradients, None, None, None, None, None


def _padded(vocabulary: int) -> int:
    """Elements from one row of logits to the next."""
    return -(-vocabulary // ROW) * ROW


def _gradients_in_place(
    logits: Tensor, targets: Tensor, factor: Tensor, losses: Tensor, ignore_index: int, gradients: bool
) -> None:
    """Write each token's loss and, if wanted, turn the logits into factor times the gradient of their summed loss."""
    if runs_kernels(logits):
        cross_entropy_in_place(logits, targets, factor, losses, ignore_index, gradients)
        return
    wide = logits.float()
    losses.copy_(nn.functional.cross_entropy(wide, targets, ignore_index=ignore_index, reduction="none"))
    if gradients:
        counts = targets != ignore_index
        probabilities = wide.softmax(-1)
        probabilities[counts, targets[counts]] -= 1
        logits.copy_(torch.where(counts[:, None], probabilities * factor, 0))


def _add_matmul(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a @ b to the total, or start the total with it; the total is fp32 or of their dtype."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, beta=0 if first else 1, out=total)
    elif a.is_cuda:
        torch.addmm(total, a, b, beta=0 if first else 1, out_dtype=torch.float32, out=total)
    else:
        torch.addmm(total, a.float(), b.float(), beta=0 if first else 1, out=total)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int | None) -> None:
    if hidden.dim() < 2 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        shapes = f"{list(hidden.shape)} and {list(weight.shape)}"
        raise ValueError(f"hidden and weight have shapes {shapes}; allowed: [..., d] and [vocabulary, d]")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(f"targets have shape {list(targets.shape)}; allowed: hidden's, {list(hidden.shape[:-1])}")
    if hidden.dtype not in DTYPES or weight.dtype != hidden.dtype:
        allowed = " or ".join(map(str, DTYPES))
        raise ValueError(f"hidden and weight are {hidden.dtype} and {weight.dtype}; allowed: both {allowed}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool:
        raise ValueError(f"targets are {targets.dtype}; allowed: integers")
    if not hidden.device == weight.device == targets.device:
        devices = f"{hidden.device}, {weight.device} and {targets.device}"
        raise ValueError(f"hidden, weight and targets are on {devices}; allowed: one device")
    if not len(weight):
        raise ValueError("weight has no rows; allowed: a vocabulary of at least 1")
    if chunk is not None and not (isinstance(chunk, int) and chunk >= 1):
        raise ValueError(f"chunk is {chunk}; allowed: whole numbers from 1")
