"""A weight of which each rank keeps some rows for good, and all of them while it is used."""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.parallel.collectives import all_gather_single, reduce_scatter_single
from cs336_systems.parallel.lane import Transfer, Waitable, as_one_call


class ShardedWeight:
    """Rank r of N keeps rows r·k to (r + 1)·k - 1, k = ⌈rows/N⌉: the last ranks have fewer of them, or none.

    The whole weight is one tensor for good, whose storage is there only from `gather` to `free`. What autograd saves of
    it for the backward pass, views included, shares that storage, and is whole again when the weight is.
    """

    def __init__(self, parameter: nn.Parameter, compute_dtype: torch.dtype | None):
        """Copy this rank's rows; the parameter itself is no longer needed.

        Args:
            parameter: [rows, ...], the same on all ranks.
            compute_dtype: dtype of the whole weight and of its gradient; None: the parameter's. The shard, and the
                gradient that the optimizer sees, keep the parameter's.
        """
        self.shape = parameter.shape
        self._ranks, self._rank = dist.get_world_size(), dist.get_rank()
        self._rows = math.ceil(self.shape[0] / self._ranks)
        self.shard = nn.Parameter(
            self.own_rows(parameter.detach()).clone(memory_format=torch.contiguous_format), parameter.requires_grad
        )
        padded = parameter.new_empty(
            self._ranks * self._rows * math.prod(self.shape[1:]), dtype=compute_dtype, requires_grad=False
        )
        self.whole = nn.Parameter(padded[: parameter.numel()].view(self.shape), parameter.requires_grad)
        self._padded = padded.data  # Has a version of its own: autograd does not take gathering for a change.
        self._place = self.place_of_rank(self._padded)
        self._own_rows = self._place[: self.shard.numel()].view(self.shard.shape)
        self.units = 0
        """How many units use it; several, if it is tied."""
        self.users: set[tuple[int, bool]] = set()
        """What needs the whole weight now: the index of a unit, and whether it is in its backward pass."""
        self.arrival: Transfer | None = None
        self._reduced: Tensor | None = None
        self.free()

    def own_rows(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor that is as long as the whole weight."""
        return whole[self._rank * self._rows : (self._rank + 1) * self._rows]

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in memory, or on their way."""
        return self.arrival is not None

    def place_of_rank(self, padded: Tensor) -> Tensor:
        """This rank's part of all rows, [N · k · row], padded ones included."""
        return padded.chunk(self._ranks)[self._rank]

    def prepare_gather(self) -> partial[Waitable | None]:
        """Allocate the whole weight and cast the shard to its place there; the all-gather is left to be called."""
        self._padded.untyped_storage().resize_(self._padded.nbytes)
        self._own_rows.copy_(self.shard.detach())
        return partial(all_gather_single, self._padded, self._place)

    def wait_for_arrival(self) -> None:
        """Wait until the weight is whole: on a GPU the current stream waits, not the host."""
        assert self.arrival is not None, "nobody has started to gather it"
        self.arrival.wait()

    def free(self) -> None:
        """Give the memory of the whole weight back."""
        if self.arrival is not None:
            self.arrival.wait()
            self.arrival = None
        self._padded.untyped_storage().resize_(0)

    def take_gradient(self) -> Tensor:
        """The gradient of the whole weight, in one dimension, with as many rows for each rank; it is taken away."""
        gradient = self.whole.grad
        assert gradient is not None, "no gradient has arrived"
        self.whole.grad = None
        flat = gradient.reshape(-1)
        missing = self._padded.numel() - flat.numel()
        return nn.functional.pad(flat, (0, missing)) if missing else flat  # pad would copy

    def add_reduced(self, rows: Tensor) -> None:
        """Add to the gradient of the shard, in its dtype, what a reduce-scatter has left on this rank."""
        rows = rows[: self.shard.numel()].view(self.shard.shape).to(self.shard.dtype)
        self._reduced = rows if self._reduced is None else self._reduced.add_(rows)

    def give_gradient(self) -> None:
        """Give the shard its gradient; it has none if none was reduced."""
        if self._reduced is not None:
            self.shard.grad = self._reduced if self.shard.grad is None else self.shard.grad.add_(self._reduced)
            self._reduced = None

    def gather_shards(self) -> Tensor:
        """The whole weight in the shard's dtype, in memory of its own. All ranks call it."""
        padded = self.shard.new_empty(self._padded.numel(), requires_grad=False)
        place = self.place_of_rank(padded)
        place[: self.shard.numel()].copy_(self.shard.detach().flatten())
        all_gather_single(padded, place)
        return padded[: math.prod(self.shape)].view(self.shape)


def gather(weights: Sequence[ShardedWeight], asynchronous: bool) -> Waitable | None:
    """Make weights whole, in one call."""
    return as_one_call([weight.prepare_gather() for weight in weights], asynchronous)


def reduce(gradients: Sequence[Tensor], received: list[Tensor], asynchronous: bool) -> Waitable | None:
    """Leave on each rank its rows of the gradients' means over the ranks, in one call.

    They travel in the dtype in which they were computed. A wider one would cost twice the time, and spare only the
    roundings of the mean, each as large as that which each gradient has already seen. What several passes add up to is
    in the shards' dtype.

    Args:
        gradients: as `take_gradient` gives them; they must stay in memory until the result is there.
        received: where what this rank receives is appended.
        asynchronous: whether to return before it is there.
    """
    received.extend(gradient.new_empty(gradient.numel() // dist.get_world_size()) for gradient in gradients)
    pairs = zip(received, gradients, strict=True)
    return as_one_call([partial(reduce_scatter_single, *pair, dist.ReduceOp.AVG) for pair in pairs], asynchronous)
