"""State of one parameter of MasterAdamW: step, two moments and, for bf16, the remainder of the fp32 master.

A state follows its parameter: same shape, device and memory layout, and the same sharding if it is a DTensor. If a
model was cast or moved, or a state was cleared or replaced, the state is adapted before the next update.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cs336_systems.parallel.distributed_parameters import own_part, same_sharding

DTYPES = (torch.bfloat16, torch.float32)
MOMENTS = ("exp_avg", "exp_avg_sq")


def tensors_of(parameter: Tensor) -> dict[str, torch.dtype]:
    """The tensors in a parameter's state that have its shape, with their dtypes."""
    moments = dict.fromkeys(MOMENTS, torch.float32)
    return {**moments, "remainder": torch.int16} if parameter.dtype is torch.bfloat16 else moments


def check_parameter(parameter: Tensor) -> None:
    """Raise a ValueError if the kernel cannot traverse a parameter's memory, or its state could not be saved."""
    part = own_part(parameter)
    if parameter.dtype not in DTYPES:
        raise ValueError(f"a parameter is of dtype {parameter.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    if parameter.is_meta:
        raise ValueError("a parameter is on the meta device; allowed: parameters in memory, as after to_empty()")
    if is_traceable_wrapper_subclass(part):
        raise ValueError(f"a parameter is a {type(part).__name__}; allowed: plain tensors and DTensors")
    if parameter.dtype is torch.bfloat16 and getattr(parameter, "_fsdp_flattened", False):
        raise ValueError(
            "a bf16 parameter of PyTorch's first FSDP, which cannot save the masters' remainders; allowed: its fp32 "
            "parameters, or those of fully_shard or FullyShardedDataParallel"
        )
    if not is_dense(part):
        shown = f"shape {list(part.shape)} and strides {list(part.stride())}"
        raise ValueError(f"a parameter of {shown} has gaps in memory; allowed: dense parameters")


def check_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Raise a ValueError if a gradient differs from its parameter in layout, dtype, shape, device or sharding."""
    if (
        gradient.dtype is parameter.dtype
        and gradient.shape == parameter.shape
        and gradient.device == parameter.device
        and gradient.layout is torch.strided
        and not isinstance(parameter, DTensor)
        and not isinstance(gradient, DTensor)
    ):
        return  # most match, and each check takes a microsecond of host time
    if gradient.layout is not torch.strided:
        raise ValueError("MasterAdamW does not support sparse gradients; use dense ones, or torch.optim.SparseAdam")
    if gradient.dtype is not parameter.dtype and gradient.dtype is not torch.float32:
        allowed = f"its parameter's, {parameter.dtype}, and {torch.float32}"
        raise ValueError(f"a gradient is of dtype {gradient.dtype}; allowed: {allowed}")
    check_like("a gradient", gradient, parameter)
    if gradient.device != parameter.device:
        raise ValueError(f"a gradient is on {gradient.device}; allowed: its parameter's device, {parameter.device}")


def check_like(name: str, value: Tensor, parameter: Tensor) -> None:
    """Raise a ValueError if a tensor is not shaped, or not sharded, like its parameter."""
    if value.shape != parameter.shape:
        raise ValueError(f"{name} is of shape {list(value.shape)}; allowed: its parameter's, {list(parameter.shape)}")
    if not same_sharding(value, parameter):
        given, allowed = (str(getattr(x, "placements", "not sharded")) for x in (value, parameter))
        raise ValueError(f"{name} is {given}; allowed: sharded like its parameter, which is {allowed}")


def check_state(parameter: Tensor, state: Mapping[str, Any]) -> None:
    """Raise a ValueError if a tensor of a state is not shaped or sharded like its parameter."""
    for name in tensors_of(parameter):
        if name in state:
            check_like(name, torch.as_tensor(state[name]), parameter)


def fit_state(parameter: Tensor, state: dict[str, Any]) -> None:
    """Create a state's missing tensors as zeros, and make the others match the parameter."""
    step = state.get("step")
    if step is None:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
    elif not (isinstance(step, Tensor) and _fits(step, (), parameter.device, torch.float32)):
        state["step"] = torch.as_tensor(step).to(parameter.device, torch.float32, copy=True).reshape(())
    for name, dtype in tensors_of(parameter).items():
        value = state.get(name)
        if value is None:
            state[name] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        elif not _fits(own_part(value), own_part(parameter).stride(), parameter.device, dtype):
            state[name] = torch.empty_like(parameter, dtype=dtype, requires_grad=False).copy_(value)
    if parameter.dtype is torch.float32:
        state.pop("remainder", None)  # of the bf16 weight that it was


def check_saved(parameter: Tensor, saved: Mapping[str, Any]) -> None:
    """Raise a ValueError if a saved state is not of AdamW, or is another parameter's."""
    for name in ("step", *MOMENTS):
        if name not in saved:
            raise ValueError(f"a state has no {name}; allowed: states of MasterAdamW or torch.optim.AdamW")
    if torch.as_tensor(saved["step"]).numel() != 1:
        raise ValueError(f"step is of shape {list(saved['step'].shape)}; allowed: one number")
    check_state(parameter, saved)
    remainder = saved.get("remainder")
    if remainder is not None and remainder.dtype is not torch.int16:
        raise ValueError(f"remainder is of dtype {remainder.dtype}; allowed: {torch.int16}")


def load_saved(parameter: Tensor, state: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Fill a matching state in place; a remainder that was not saved is left unchanged."""
    state["step"].copy_(torch.as_tensor(saved["step"]).reshape(()))
    for name in tensors_of(parameter):
        if name in saved:
            state[name].copy_(saved[name])


def is_dense(x: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order of axes."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _fits(x: Tensor, stride: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> bool:
    return x.dtype is dtype and x.device == device and x.stride() == stride
