"""First derivatives in reverse mode, computed by attention's backward operator; other derivatives raise an error."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from cs336_systems.attention.options import TENSORS

Gradients = tuple[Tensor, Tensor, Tensor]


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the tensors for backward_by: inputs are q, k, v and options; outputs are o and L."""
    (q, k, v, *ctx.options), tensors = inputs[:-TENSORS], inputs[-TENSORS:]
    ctx.save_for_backward(q, k, v, *output, *tensors)
    ctx.set_materialize_grads(False)  # whose zeros for an unused L would cost a kernel launch


def backward_by(function: Callable[..., Gradients]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Make the backward method that matches save_for_backward.

    Args:
        function: gradients of q, k, v and, if there are any, sinks from (grad_o, q, k, v, o, lse, grad_lse, *options).
    """

    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        grad_o = torch.zeros_like(o) if grad_o is None else grad_o
        dq, dk, dv, *of_sinks = once(function, grad_o, q, k, v, o, lse, grad_lse, *ctx.options, *tensors)
        # One gradient per input: numbers and documents' bounds have none.
        return dq, dk, dv, *([None] * len(ctx.options)), *(of_sinks or [None]), None, None

    return backward


def once(function: Callable[..., Any], *arguments: Any, name: str = "flash_attention") -> Any:
    """Call a backward method's function so that differentiating its result again raises an error.

    Args:
        function: computes the gradients.
        arguments: of the function; the gradients depend on nothing else that can require a gradient.
        name: name of the function that cannot be differentiated twice, for the error.
    """
    if not torch.is_grad_enabled():  # the usual case: no create_graph=True
        return function(*arguments)
    return _Once.apply(name, function, *arguments)


def only_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a backward method raise an error if its gradients are differentiated again.

    PyTorch's `once_differentiable` raises no error if the incoming gradient requires no gradient, as for a loss. The
    forward method has to save each input on which the gradients depend, or an output that gives access to it.

    Args:
        name: the function, for the error.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def method(ctx: Any, *gradients: Tensor | None) -> Any:
            if not torch.is_grad_enabled():  # the usual case: no create_graph=True
                return backward(ctx, *gradients)
            count, unpacked = len(gradients), _Unpacked(ctx)
            return once(lambda *all_: backward(unpacked, *all_[:count]), *gradients, *unpacked.saved_tensors, name=name)

        return method

    return decorate


def refuse_forward_mode(ctx: Any, *grad_inputs: Any) -> NoReturn:
    """Refuse forward-mode derivatives: the jvp method of an autograd function.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("flash_attention has no forward-mode derivative (jvp, jacfwd, hessian).")


class _Unpacked:
    """The context of a backward method, whose saved tensors are unpacked only once: a checkpoint does not allow a
    second time.
    """

    def __init__(self, ctx: Any):
        object.__setattr__(self, "_ctx", ctx)
        object.__setattr__(self, "saved_tensors", ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)


class _Once(torch.autograd.Function):
    """A function without derivatives: apply(its name, function, *arguments)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the name."""
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        """Refuse second derivatives: they would be wrong, since L is saved as a constant, and kernels have none."""
        raise NotImplementedError(f"{ctx.name} cannot be differentiated twice (create_graph=True).")

    jvp = staticmethod(refuse_forward_mode)
