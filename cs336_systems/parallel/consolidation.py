"""Gather the optimizer states of all ranks in the host's memory."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.parallel.buckets import MB, group_tensors, views_like

MESSAGE_BYTES = 100 * MB
"""Maximum size of one message, an upper bound of the device memory that consolidation needs."""

State = dict[str, Any]


def consolidate(
    mine: dict[int, State], device: torch.device, *, keep: bool, group: dist.ProcessGroup | None = None
) -> dict[int, State]:
    """Gather all ranks' states, by the parameters' numbers, on the ranks that `keep` them; every rank calls this.

    Tensors on `device`, where the ranks communicate, are broadcast; everything else, such as a step counter on the
    host, is pickled.
    """
    everyones: list[dict[int, State]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(
        everyones,
        {index: {name: outline(value, device) for name, value in state.items()} for index, state in mine.items()},
        group=group,
    )
    for rank, states in enumerate(everyones):
        names = [(index, name) for index, state in states.items() for name in state if is_outline(state[name])]
        outlines = [states[index][name] for index, name in names]
        for together in group_tensors(outlines, MESSAGE_BYTES):
            members = [outlines[i] for i in together]
            flat = torch.empty(sum(tensor.numel() for tensor in members), dtype=members[0].dtype, device=device)
            views = views_like(flat, members)
            if rank == dist.get_rank(group):
                torch._foreach_copy_(views, [mine[index][name] for index, name in (names[i] for i in together)])
            dist.broadcast(flat.view(torch.uint8), group=group, group_src=rank)  # no backend sends 16-bit integers
            for i, view in zip(together, views, strict=True) if keep else ():
                index, name = names[i]
                states[index][name] = view.to("cpu", copy=True)
    return {index: state for states in everyones for index, state in states.items()} if keep else {}


def outline(value: Any, device: torch.device) -> Any:
    """Metadata sent ahead of a value: shape, dtype and strides of a tensor on the device; any other value itself."""
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) and value.device == device else value


def is_outline(value: Any) -> bool:
    """Whether this is the metadata of a tensor that is still to be sent."""
    return isinstance(value, Tensor) and value.is_meta
