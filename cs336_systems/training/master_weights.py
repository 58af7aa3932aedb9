"""An fp32 master weight as a bf16 weight and an int16 remainder.

The bf16 weight is the master rounded half up (away from zero), so that the bits of the master are exactly
(bf16 bits << 16) + remainder. A separate fp32 master next to the bf16 weight would take two more bytes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cs336_systems.parallel.distributed_parameters import divided_like, own_part

NAN_BITS = 0x7FC00000


def split_master(master: Tensor) -> tuple[Tensor, Tensor]:
    """Split fp32 numbers into bf16 and int16 of the same shape; all NaNs become the same NaN."""
    bits = torch.where(master.isnan(), NAN_BITS, master.view(torch.int32))
    high = (bits + 0x8000) >> 16
    return high.to(torch.int16).view(torch.bfloat16), (bits - (high << 16)).to(torch.int16)


def join_master(weight: Tensor, remainder: Tensor) -> Tensor:
    """The fp32 numbers, exactly, from bf16 weights and int16 remainders of the same shape."""
    return ((weight.view(torch.int16).to(torch.int32) << 16) + remainder).view(torch.float32)


def master_of(parameter: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """The fp32 master of a bf16 parameter, a new tensor with the same sharding; without a remainder, its own values."""
    weight = own_part(parameter.detach())
    if "remainder" not in state:
        return divided_like(parameter, weight.float())
    return divided_like(parameter, join_master(weight, own_part(state["remainder"]).to(weight.device)))


def set_master(parameter: Tensor, state: Mapping[str, Tensor], master: Tensor) -> None:
    """Set a parameter (fp32, or bf16 with a remainder in its state) to a master of the same shape and sharding."""
    weight, part = own_part(parameter), own_part(master).to(parameter.device, torch.float32)
    if weight.dtype is torch.float32:
        weight.copy_(part)
    else:
        high, low = split_master(part)
        weight.copy_(high)
        own_part(state["remainder"]).copy_(low)
