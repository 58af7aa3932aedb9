"""A row-sharded weight: each rank keeps its shard, and the full weight only while it is in use."""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from cs336_systems.parallel.collectives import all_gather_single, averaging, reduce_scatter_single
from cs336_systems.parallel.communication_stream import Transfer, Waitable, as_one_call
from cs336_systems.parallel.distributed_parameters import (
    check_unchanged,
    give_gradient,
    is_differentiable,
    local_part,
    outside_parameter,
)
from cs336_systems.parallel.symmetric_memory import SymmetricMemory


class ShardedWeight:
    """A weight sharded by rows: rank r of N keeps rows r·k to (r + 1)·k - 1, with k = ⌈rows/N⌉.

    The last ranks have fewer rows, or none. The full weight is a permanent tensor whose storage exists only from
    `gather` to `free`. Tensors that autograd saves of it, including views, share that storage, and are valid again when
    the weight is gathered again.
    """

    def __init__(self, name: str, parameter: nn.Parameter, compute_dtype: torch.dtype | None, mesh: DeviceMesh):
        """Copy this rank's rows of a parameter, [rows, ...], the same on all ranks of a mesh of one dimension.

        The whole weight and its gradient have `compute_dtype`, if they are floating-point and it is not None; the
        shard, and the gradient that the optimizer sees, keep the parameter's. Error messages contain `name`.
        """
        self.name = name
        self.shape = parameter.shape
        self.group = mesh.get_group()
        self._ranks, self._rank = mesh.size(), mesh.get_local_rank()
        self._rows = math.ceil(self.shape[0] / self._ranks)
        rows = self.own_rows(parameter.detach()).clone(memory_format=torch.contiguous_format)
        self.shard = outside_parameter(rows, Shard(0), mesh, like=parameter)
        """The parameter that `parameters()` returns: a DTensor of the whole weight's shape, with this rank's rows."""
        self._dtype = parameter.dtype
        cast = compute_dtype if parameter.is_floating_point() else None
        padded = parameter.new_empty(
            self._ranks * self._rows * math.prod(self.shape[1:]), dtype=cast, requires_grad=False
        )
        self.whole = nn.Parameter(padded[: parameter.numel()].view(self.shape), is_differentiable(parameter))
        self._padded = padded.data  # It has its own version counter, so autograd does not see gathering as a change.
        self._place = self.place_of_rank(self._padded)
        self._own_rows = self._place[: rows.numel()].view(rows.shape)
        self.units = 0
        """How many units use the weight; more than one if it is tied."""
        self.users: set[tuple[int, bool]] = set()
        """Users of the whole weight at present: the index of a unit, and whether it is in its backward pass."""
        self.arrival: Transfer | None = None
        self.source: SymmetricMemory | None = None
        """Where all ranks expose their rows, if copy engines gather the weight."""
        self._exposed: list[Tensor] = []  # each rank's rows there, [k · row]
        self.is_exposed = False
        """Whether all ranks have exposed the rows of this pass."""
        self._reduced: Tensor | None = None
        self.free()

    @property
    def rows(self) -> Tensor:
        """This rank's rows, the shard's own memory."""
        return local_part(self.shard)

    def own_rows(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor as long as the full weight."""
        return whole[self._rank * self._rows : (self._rank + 1) * self._rows]

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in memory or in flight."""
        return self.arrival is not None

    def place_of_rank(self, padded: Tensor) -> Tensor:
        """This rank's part of all rows, [N · k · row], including padding."""
        return padded.chunk(self._ranks)[self._rank]

    def follow(self) -> bool:
        """Copy `requires_grad` from the shard; return whether it changed."""
        check_unchanged(self.name, self.shard, self._dtype, self._padded.device)
        if self.whole.requires_grad == self.shard.requires_grad:
            return False
        self.whole.requires_grad_(self.shard.requires_grad)
        return True

    def prepare_gather(self) -> partial[Waitable | None]:
        """Allocate the full weight, cast the shard into its place, and return the all-gather, to be called later."""
        self._padded.untyped_storage().resize_(self._padded.nbytes)
        self._own_rows.copy_(self.rows)
        return partial(all_gather_single, self._padded, self._place)

    @property
    def exposed_bytes(self) -> int:
        """Bytes of a rank's rows in the compute dtype."""
        return self._padded.nbytes // self._ranks

    def expose_in(self, source: SymmetricMemory, start: int) -> None:
        """Gather from the ranks' symmetric memory, where the rows begin at a given byte."""
        part = slice(start, start + self.exposed_bytes)
        self.source = source
        self._exposed = [memory[part].view(self._padded.dtype) for memory in source.of_rank]

    def expose(self) -> None:
        """Cast the shard into symmetric memory, where other ranks read it."""
        rows = self.rows
        self._exposed[self._rank][: rows.numel()].view(rows.shape).copy_(rows)
        self.is_exposed = True

    def pull(self) -> None:
        """Allocate the whole weight, and copy the rows that all ranks have exposed."""
        self._padded.untyped_storage().resize_(self._padded.nbytes)
        for distance in range(self._ranks):  # Each rank starts with a different one.
            rank = (self._rank + distance) % self._ranks
            self._padded.chunk(self._ranks)[rank].copy_(self._exposed[rank])

    def wait_for_arrival(self) -> None:
        """Wait until the weight is gathered: on a GPU the current stream waits, not the host."""
        assert self.arrival is not None, "nobody has started to gather it"
        self.arrival.wait()

    def free(self) -> None:
        """Free the memory of the whole weight."""
        if self.arrival is not None:
            self.arrival.wait()
            self.arrival = None
        self._padded.untyped_storage().resize_(0)

    def take_gradient(self) -> Tensor:
        """Remove and return the full weight's gradient, flattened and padded to equal parts for all ranks."""
        gradient = self.whole.grad
        assert gradient is not None, "no gradient has arrived"
        self.whole.grad = None
        flat = gradient.reshape(-1)
        missing = self._padded.numel() - flat.numel()
        return nn.functional.pad(flat, (0, missing)) if missing else flat  # pad would copy

    def add_reduced(self, rows: Tensor) -> None:
        """Add this rank's part of a reduce-scatter to the gradient of the shard, in the shard's dtype."""
        rows = rows[: self._own_rows.numel()].view(self._own_rows.shape).to(self._dtype)
        self._reduced = rows if self._reduced is None else self._reduced.add_(rows)

    def give_gradient(self) -> None:
        """Set the shard's gradient, if one was reduced."""
        if self._reduced is not None:
            give_gradient(self.shard, self._reduced)
            self._reduced = None

    def drop_gradient(self) -> None:
        """Drop gradients that the shard has not received yet."""
        self.whole.grad = self._reduced = None

    def gather_shards(self) -> Tensor:
        """Gather a copy of the whole weight in the shard's dtype. All ranks call it."""
        rows = self.rows
        padded = rows.new_empty(self._padded.numel())
        place = self.place_of_rank(padded)
        place[: rows.numel()].copy_(rows.flatten())
        all_gather_single(padded, place, group=self.group)
        return padded[: math.prod(self.shape)].view(self.shape)


def gather(weights: Sequence[ShardedWeight], asynchronous: bool) -> Waitable | None:
    """Gather full weights in one call, or by copies from symmetric memory."""
    source = weights[0].source
    if source is not None:
        pull(weights, source)
        return None
    return as_one_call([weight.prepare_gather() for weight in weights], weights[0].group, asynchronous)


def pull(weights: Sequence[ShardedWeight], source: SymmetricMemory) -> None:
    """Gather full weights by copies, and expose this rank's rows of weights not yet used in this pass."""
    if stale := [weight for weight in weights if not weight.is_exposed]:
        source.barrier()  # No rank reads the old rows any more.
        for weight in stale:
            weight.expose()
        source.barrier()  # All new rows have arrived.
    for weight in weights:
        weight.pull()


def reduce(
    gradients: Sequence[Tensor], received: list[Tensor], group: dist.ProcessGroup, asynchronous: bool
) -> Waitable | None:
    """Reduce-scatter gradients in one call; this rank's rows of the means are appended to `received`.

    Gradients are sent in the dtype in which they were computed. A wider dtype would take twice as long, and would avoid
    only the rounding of the mean, which is no larger than the rounding already in each gradient. Sums over several
    passes are kept in the shards' dtype. The gradients, from `take_gradient`, are overwritten, and must stay in memory
    until the result is ready.
    """
    received.extend(gradient.new_empty(gradient.numel() // group.size()) for gradient in gradients)
    operation = averaging(gradients, group)
    pairs = zip(received, gradients, strict=True)
    collectives = [partial(reduce_scatter_single, *pair, operation) for pair in pairs]
    return as_one_call(collectives, group, asynchronous)
