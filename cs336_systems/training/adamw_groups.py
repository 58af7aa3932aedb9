"""Hyperparameters of MasterAdamW in its groups, state dicts and `step`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from cs336_systems.training.parameter_table import values

HYPERPARAMETERS = ("lr", "beta1", "beta2", "eps", "weight_decay")
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,),
    "maximize": (False,),
    "foreach": (None, True, False),
    "fused": (None, True, False),
    "capturable": (True, False),
    "differentiable": (False,),
    "decoupled_weight_decay": (True,),
}
"""Options of torch.optim.AdamW, each with the values that do not change results here."""


def check_group(group: Mapping[str, Any]) -> None:
    """Raise a ValueError if a hyperparameter is missing or out of range, or an option is not supported.

    A hyperparameter that is not a number raises a TypeError.
    """
    for name, allowed in UNSUPPORTED.items():
        if group.get(name, allowed[0]) not in allowed:
            raise ValueError(f"MasterAdamW does not support {name}={group[name]}; leave it out")
    for name in ("lr", "betas", "eps", "weight_decay"):
        if name not in group:
            raise ValueError(f"a group has no {name}; allowed: groups of MasterAdamW or torch.optim.AdamW")
    if not isinstance(group["betas"], tuple | list) or len(group["betas"]) != 2:
        raise ValueError(f"betas are {group['betas']}; allowed: two numbers")
    for name, value in zip(HYPERPARAMETERS, values(group), strict=True):
        if isinstance(value, Tensor):
            if name != "lr" or value.numel() != 1:
                raise ValueError(f"{name} is a tensor of {value.numel()} elements; allowed: a number, for lr a scalar")
            continue
        limits = "numbers in [0, 1)" if name.startswith("beta") else "numbers from 0"
        try:
            valid = value >= 0 and (not name.startswith("beta") or value < 1)
        except TypeError:  # not a number
            raise TypeError(f"{name} is {value!r}; allowed: {limits}") from None
        if not valid:
            raise ValueError(f"{name} is {value}; allowed: {limits}")


def loaded_groups(groups: Sequence[dict[str, Any]], saved: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of saved groups, with the parameters of `groups`; a ValueError says if they do not fit."""
    given, allowed = ([len(group["params"]) for group in some] for some in (saved, groups))
    if given != allowed:
        raise ValueError(f"the state has groups of {given} parameters; allowed: {allowed}, as the optimizer")
    loaded = []
    for group, other in zip(groups, saved, strict=True):
        check_group(other)
        hyperparameters = copy.deepcopy({name: value for name, value in other.items() if name != "params"})
        names = {"param_names": group["param_names"]} if "param_names" in group else {}
        loaded.append({**names, **hyperparameters, "params": group["params"]})
    return loaded


def one_number(scale: Tensor | float) -> Tensor | float:
    """The factor of the gradients, a number or a scalar tensor; a ValueError if it is not one real number."""
    if isinstance(scale, DTensor):
        scale = scale.full_tensor()
    if not isinstance(scale, Tensor):
        return float(scale)
    if scale.numel() != 1 or scale.is_complex():
        raise ValueError(f"scale is a tensor of shape {list(scale.shape)} and {scale.dtype}; allowed: one real number")
    return scale.detach().reshape(())
