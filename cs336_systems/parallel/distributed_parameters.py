"""DTensor parameters of a sharded model, so that PyTorch's clipping, scaling and checkpoints work."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

Place = tuple[nn.Module, str]


def outside_parameter(local: Tensor, placement: Placement, mesh: DeviceMesh, like: nn.Parameter) -> nn.Parameter:
    """A DTensor parameter with the shape of `like` over the ranks of a mesh, in the memory of its local part."""
    stride = torch.empty(like.shape, device="meta").stride() if local.is_contiguous() else like.stride()
    distributed = DTensor.from_local(local, mesh, [placement], run_check=False, shape=like.shape, stride=stride)
    return nn.Parameter(distributed, like.requires_grad)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; like `to_local`, but outside autograd and ten times as fast."""
    part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return part


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, once it has arrived; any other tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = local_part(tensor)
    return part.wait() if isinstance(part, AsyncCollectiveTensor) else part


def same_sharding(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of the same shape have the same sharding over the same ranks, or neither is sharded."""
    if isinstance(a, DTensor) and isinstance(b, DTensor):
        return a.placements == b.placements and a.device_mesh == b.device_mesh
    return isinstance(a, DTensor) == isinstance(b, DTensor)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor's dtype allows gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def divided_like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor sharded like `tensor`, with `part` as this rank's part; `part` itself if `tensor` is not sharded."""
    if not isinstance(tensor, DTensor):
        return part
    shape, stride = tensor.shape, tensor.stride()
    return DTensor.from_local(part, tensor.device_mesh, tensor.placements, run_check=False, shape=shape, stride=stride)


def give_gradient(parameter: nn.Parameter, local: Tensor) -> None:
    """Add to a DTensor parameter's gradient, and run its hooks, as autograd does only for the local part."""
    gradient = DTensor(local, parameter._spec, requires_grad=False)  # type: ignore[attr-defined]
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    hooks: dict[int, Any] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for hook in list(hooks.values()):
        hook(parameter)


def check_unchanged(name: str, parameter: nn.Parameter, dtype: torch.dtype, device: torch.device) -> None:
    """Raise a RuntimeError if a wrapped parameter's dtype or device changed, or a hook of it would never run."""
    if parameter.dtype != dtype or parameter.device != device:
        raise RuntimeError(
            f"{name} became {parameter.dtype} on {parameter.device} after wrapping; allowed: {dtype} on {device}; cast "
            "and move a module before wrapping it"
        )
    if parameter._backward_hooks:
        raise RuntimeError(
            f"{name} has a hook of `register_hook`, which would never run: autograd sees the unsharded weight; "
            "allowed: `register_post_accumulate_grad_hook`"
        )


def check_in_place(name: str, current: Tensor | None, wrapped: nn.Parameter) -> None:
    """Raise a RuntimeError if a wrapped parameter was replaced."""
    if current is not wrapped:
        raise RuntimeError(
            f"{name} was replaced after wrapping; allowed: in-place changes, by load_state_dict or under "
            "torch.no_grad()"
        )


def scale_by_all_ranks() -> None:
    """Make `torch.amp.GradScaler` see overflows of all ranks if only some gradients are sharded.

    PyTorch exchanges overflows between ranks only if the first of the gradients is sharded: put a sharded one first.
    """
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    operator = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
    handler = handlers[operator]
    if getattr(handler, "puts_sharded_first", False):
        return

    def sharded_first(call: Any, arguments: Any, options: Any) -> Any:
        gradients, *rest = arguments
        return handler(call, (sorted(gradients, key=is_replicated), *rest), options)

    sharded_first.puts_sharded_first = True  # type: ignore[attr-defined]
    handlers[operator] = sharded_first


@functools.cache
def count_updates() -> None:
    """Make the versions of DTensors count updates by optimizers whose `foreach` is set, as it is on a GPU by default.

    PyTorch's operators on lists of tensors change the versions of plain tensors, but not those of DTensors.
    """
    register_optimizer_step_post_hook(torch.compiler.disable(increment_versions))


def increment_versions(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Increment the version of an optimizer's DTensors."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    torch.autograd.graph.increment_version([each for each in parameters if isinstance(each, DTensor)])


def is_replicated(tensor: Tensor) -> bool:
    """Whether a DTensor is replicated: each rank holds the whole tensor."""
    return not isinstance(tensor, DTensor) or all(isinstance(place, Replicate) for place in tensor.placements)
