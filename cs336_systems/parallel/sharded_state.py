"""Loading state dicts, with DTensors or unsharded tensors, into sharded models."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cs336_systems.parallel.distributed_parameters import Place


def load_into(parameters: Mapping[Place, nn.Parameter]) -> None:
    """Make `load_state_dict` accept unsharded tensors for DTensor parameters, and copy instead of assigning."""
    for (owner, name), parameter in parameters.items():
        owner.register_load_state_dict_pre_hook(take_own_part(name, parameter))
        owner.register_load_state_dict_post_hook(take_assigned(name, parameter))


def take_own_part(name: str, parameter: nn.Parameter) -> Callable[..., None]:
    """Make a pre-hook of `load_state_dict` that cuts out this rank's rows; PyTorch refuses tensors of another shape."""

    def hook(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape:
            assert isinstance(parameter, DTensor)
            state[prefix + name] = distribute_tensor(
                value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None
            )

    return hook


def take_assigned(name: str, parameter: nn.Parameter) -> Callable[..., None]:
    """Make a post-hook of `load_state_dict` that copies from a parameter which `assign=True` has put in place."""

    def hook(module: nn.Module, incompatible_keys: object) -> None:
        assigned = module._parameters[name]
        if assigned is not None and assigned is not parameter:
            with torch.no_grad():
                parameter.copy_(assigned)
            module._parameters[name] = parameter

    return hook
