"""Track who averages a parameter's gradient over ranks, and who consumes the gradient during the backward pass.

Both act in hooks of `register_post_accumulate_grad_hook`, so a parameter may have only one of them: a gradient that is
consumed in its hook is not averaged yet, and is gone when the wrapper averages. This module lets each detect the other.

A DTensor is the exception. The hooks of a sharded parameter, of `FullyShardedDataParallel` or PyTorch's `fully_shard`,
run when its averaged gradient is set.
"""

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.parallel.wrapped_module import WrappedModule

# The ids of the parameters that each object holds, as long as it exists. A weak reference to a parameter would prevent
# swapping it, as Module.to_empty does with DTensors.
_synchronizers: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
_users: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_registrations = 0


def synchronizer_of(parameter: Tensor) -> object | None:
    """The wrapper that averages a parameter's gradient: this library's, or PyTorch's DDP or first FSDP; None: nobody.

    For PyTorch's FSDP it is the class. PyTorch's `fully_shard` has no wrapper: its parameters are DTensors, averaged
    when the backward pass ends. A deep-copied or unpickled torch DDP is not detected.
    """
    if getattr(parameter, "_fsdp_flattened", False):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel
    return _holder(_synchronizers, parameter)


def synchronizes(wrapper: nn.Module, parameters: Iterable[Tensor]) -> None:
    """Record that `wrapper`, which holds these parameters, averages their gradients as long as it exists.

    Others that average one of them raise an error if they are used; two of PyTorch's are its own affair.
    """
    ids = {id(parameter) for parameter in parameters}
    for other, theirs in list(_synchronizers.items()):
        of_this_library = isinstance(other, WrappedModule) or isinstance(wrapper, WrappedModule)
        if other is not wrapper and of_this_library and not ids.isdisjoint(theirs):
            _retire(other, wrapper)
    _synchronizers[wrapper] = ids


def _retire(older: nn.Module, wrapper: nn.Module) -> None:
    if isinstance(older, WrappedModule):
        older.retire(type(wrapper).__name__)
        del _synchronizers[older]
        return
    newer = weakref.ref(wrapper)

    def refuse(*_: object) -> None:
        if newer() is not None:
            raise RuntimeError(
                f"a {type(newer()).__name__} averages the gradients of this {type(older).__name__}'s module, too; "
                "allowed: only the last wrapper of a module"
            )

    older.register_forward_pre_hook(refuse)


def check_unwrapped(module: nn.Module, wrappers: tuple[type, ...] = (WrappedModule, DistributedDataParallel)) -> None:
    """Raise a ValueError if a part of a module is a wrapper that averages gradients; a TypeError if it is no module."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"the module is {module!r:.80}; allowed: a torch.nn.Module")
    for name, part in module.named_modules():
        if isinstance(part, wrappers):
            raise ValueError(
                f"{name or 'the module'} is a {type(part).__name__}, which averages gradients; allowed: the module "
                "that it wraps"
            )


def registrations() -> int:
    """How often any module of this process has been given a parameter or a module."""
    return _registrations


def check_not_used_up(parameters: Iterable[Tensor], wrapper: str) -> None:
    """Raise a ValueError if a gradient that a wrapper would average is consumed in the backward pass."""
    for parameter in parameters:
        if user := _user_of(parameter):
            raise ValueError(
                f"{user} consumes a parameter's gradient in the backward pass, before {wrapper} could average it; "
                "allowed: parameters whose gradients are kept until the backward pass ends"
            )


def uses_up(user: object, parameters: Iterable[Tensor], name: str = "") -> None:
    """Record that `user`, which holds these parameters, consumes their gradients, until `release` or its deletion.

    Errors refer to it by `name` or by its class.
    """
    _users[user] = {id(parameter) for parameter in parameters}
    _names[user] = name or type(user).__name__


def release(user: object) -> None:
    """Record that `user` no longer consumes gradients."""
    _users.pop(user, None)


def check_complete_in_backward(parameters: Iterable[Tensor], user: str) -> None:
    """Raise a ValueError if a gradient is averaged after its parameter's hooks run, or is consumed by another one."""
    for parameter in parameters:
        synchronizer = None if isinstance(parameter, DTensor) else synchronizer_of(parameter)
        if synchronizer is not None:
            name = getattr(synchronizer, "__name__", type(synchronizer).__name__)
            raise ValueError(
                f"{user} would use a parameter's gradient before {name} has averaged it; allowed: parameters without a "
                "data-parallel wrapper, or those of a FullyShardedDataParallel or fully_shard"
            )
        if other := _user_of(parameter):
            raise ValueError(
                f"{other} already consumes a parameter's gradient in the backward pass; allowed: either it or {user}"
            )


def _user_of(parameter: Tensor) -> str | None:
    """The name of the object that consumes a parameter's gradient; None if there is none."""
    user = _holder(_users, parameter)
    return None if user is None else _names[user]


def _holder(holders: Mapping[Any, set[int]], parameter: Tensor) -> object | None:
    return next((holder for holder, ids in holders.items() if id(parameter) in ids), None)


def _count(*_: object) -> None:
    global _registrations
    _registrations += 1


def _note_torch_ddp(module: nn.Module, name: str, child: Any) -> None:
    """Record PyTorch's DDP when its module is set; its C++ hooks cannot be seen."""
    if isinstance(module, DistributedDataParallel) and name == "module":
        check_unwrapped(child, (WrappedModule,))
        ignored = getattr(child, "_ddp_params_and_buffers_to_ignore", ())
        averaged = [p for key, p in child.named_parameters() if p.requires_grad and key not in ignored]
        check_not_used_up(averaged, "DistributedDataParallel")
        synchronizes(module, averaged)


register_module_module_registration_hook(_count)
register_module_parameter_registration_hook(_count)
register_module_module_registration_hook(_note_torch_ddp)
if dist.is_available() and dist.is_initialized():  # else there is no DDP yet
    for thing in gc.get_objects():
        if issubclass(type(thing), DistributedDataParallel):
            _note_torch_ddp(thing, "module", thing.module)
