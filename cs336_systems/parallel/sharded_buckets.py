"""Buckets of parameters, each with an owner that updates it and sends it to the other ranks."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.limits import ALIGNMENT
from cs336_systems.parallel.buckets import dense_view
from cs336_systems.parallel.collectives import all_gather_single
from cs336_systems.parallel.ownership import aligned


class ShardedBucket:
    """Parameters of one dtype, contiguous in one tensor, with a slot of equal size for each owner.

    With a slot for every rank, an all-gather sends the updates of all ranks. A bucket with a single owner is broadcast.
    The parameters are views of the tensor, so that nothing is copied.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], owners: Iterable[int], group: dist.ProcessGroup | None = None
    ):
        """Move parameters, which are of one dtype and on one device, into a bucket, and make them views of it.

        `owners` has the rank that updates each parameter; `group` the ranks, None: all.
        """
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        by_owner = sorted(zip(owners, parameters, strict=True), key=lambda pair: pair[0])
        self.parameters = [parameter for _, parameter in by_owner]
        self.mine = [parameter for owner, parameter in by_owner if owner == self.rank]
        self.owner = by_owner[0][0] if by_owner[0][0] == by_owner[-1][0] else None  # the only one
        slots = self.ranks if self.owner is None else 1
        ends = [0] * slots
        places = []  # for each parameter: its slot, and the offset of its first element there
        self._my_begins = []
        for owner, parameter in by_owner:
            slot = owner if self.owner is None else 0
            places.append((slot, ends[slot]))
            if owner == self.rank:
                self._my_begins.append(ends[slot])
            ends[slot] += aligned(parameter.numel(), ALIGNMENT // parameter.element_size())
        self.slot_size = max(ends)  # in elements
        self._begins = [slot * self.slot_size + begin for slot, begin in places]
        first = self.parameters[0]
        self._flat = self._zeros(slots * self.slot_size, first.dtype, first.device)
        self._views = self.views(self._flat)
        self.take_in()

    @property
    def nbytes(self) -> int:
        """Bytes of the bucket, gaps included."""
        return self._flat.nbytes

    @torch.no_grad()
    def take_in(self) -> None:
        """Move parameters whose data is elsewhere into the bucket: first all, later those with a replaced `.data`."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() == view.data_ptr():
                continue
            if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                raise RuntimeError(
                    f"a parameter that was {view.dtype} on {view.device} is {parameter.dtype} on {parameter.device} "
                    "now; create the optimizer after moving the model"
                )
            view.copy_(parameter)
            parameter.data = view

    def share(self) -> dist.Work:
        """Start to send the owners' updates to all ranks; `wait` before the parameters are used."""
        self.mark_updated()
        if self.owner is not None:
            return dist.broadcast(self._flat, group=self.group, group_src=self.owner, async_op=True)
        return all_gather_single(self._flat, self.my_slot(self._flat), group=self.group, async_op=True)

    def mark_updated(self) -> None:
        """Bump the parameters' versions for autograd, as in-place updates do."""
        torch.autograd.graph.increment_version(self.parameters)

    def my_slot(self, flat: Tensor) -> Tensor:
        """This rank's slot in memory laid out like the parameters, or the only slot."""
        return flat if self.owner is not None else flat.narrow(0, self.rank * self.slot_size, self.slot_size)

    def _zeros(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=device)

    def empty_like(self) -> Tensor:
        """Allocate memory laid out like the parameters."""
        return torch.empty_like(self._flat)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of memory laid out like the parameters, one per parameter."""
        return [dense_view(flat, begin, p) for begin, p in zip(self._begins, self.parameters, strict=True)]

    def my_views(self, slot: Tensor) -> list[Tensor]:
        """Views of memory laid out like this rank's slot, one per parameter that it owns."""
        return [dense_view(slot, begin, p) for begin, p in zip(self._my_begins, self.mine, strict=True)]
