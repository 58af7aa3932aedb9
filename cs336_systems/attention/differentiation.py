"""First derivatives of attention in reverse mode, by its backward operator; others raise an error."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor]


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save what backward_by needs: inputs are q, k, v, is_causal and scale, outputs o and L."""
    q, k, v, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)  # whose zeros for an unused L would cost a kernel launch


def backward_by(function: Callable[..., Gradients]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Make the backward method that goes with save_for_backward.

    Args:
        function: gradients of q, k and v from (grad_o, q, k, v, o, lse, is_causal, scale, grad_lse).
    """

    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        grad_o = torch.zeros_like(o) if grad_o is None else grad_o
        return *once(function, grad_o, q, k, v, o, lse, ctx.is_causal, ctx.scale, grad_lse), None, None

    return backward


def once(function: Callable[..., Gradients], *arguments: Any) -> Gradients:
    """Call a function of a backward method so that differentiating its result again raises an error."""
    if not torch.is_grad_enabled():  # the usual case: no create_graph=True
        return function(*arguments)
    gradients: Gradients = _Once.apply(function, *arguments)
    return gradients


def refuse_forward_mode(ctx: Any, *grad_inputs: Any) -> NoReturn:
    """Refuse forward-mode derivatives: the jvp method of an autograd function.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("flash_attention has no forward-mode derivative (jvp, jacfwd, hessian).")


class _Once(torch.autograd.Function):
    """A function without derivatives: apply(function, *arguments)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., Gradients], *arguments: Any) -> Gradients:
        return function(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        """Refuse second derivatives: they would be wrong, as L is saved as a constant."""
        raise NotImplementedError("flash_attention cannot be differentiated twice (create_graph=True).")

    jvp = staticmethod(refuse_forward_mode)
