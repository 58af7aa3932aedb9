"""Data parallelism without collectives: ranks write gradients into each other's memory during the backward pass."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.limits import ALIGNMENT
from cs336_systems.parallel.buckets import MB, Bucket, dense_view, fill_buckets, group_sizes, views_like
from cs336_systems.parallel.data_parallel import OverlappedDataParallel
from cs336_systems.parallel.ownership import aligned
from cs336_systems.parallel.streams import current_stream, new_event, new_stream
from cs336_systems.parallel.symmetric_memory import SymmetricMemory, allocate

SMALL_BYTES = MB
"""Smaller gradients are sent together, up to this size: below it, starting a copy takes longer than the copy."""

MB_PER_RANK = 100


class SymmetricMemoryDataParallel(OverlappedDataParallel):
    """Averages gradients through symmetric memory: other ranks write to a gradient's owner, which writes back the mean.

    Improves on bucketed: on GPUs, copy engines move the gradients. A collective's kernels take SMs from the backward
    pass; here only the additions do, and each rank adds only the gradients it owns. Nothing is copied into buckets: a
    gradient is sent directly from where the backward pass wrote it, and the mean is used where it arrives.

    The price is memory: ranks - 1 slots for each gradient that a rank owns, and one for each other gradient. The ranks
    must be on one machine. A mean of two gradients is rounded three times instead of once; it is bitwise identical on
    all ranks, since only the owner computes it.

    Ranks send and receive as many bytes as in a ring's reduce-scatter and all-gather (Patarasuk and Yuan 2009), in one
    hop instead of ranks - 1.
    """

    def __init__(
        self, module: nn.Module, bucket_size_mb: float | None = None, *, process_group: dist.ProcessGroup | None = None
    ):
        """Wrap a module, as `DataParallel` does.

        Args:
            module: the module to train.
            bucket_size_mb: approximate size of the gradients sent together, in 10^6 bytes; a larger gradient is sent
                alone. By default 100 per rank, so that all ranks own some of them.
            process_group: as in `DataParallel`.

        Raises:
            ValueError: as `DataParallel`, or a bucket size that is not positive.
            RuntimeError: the ranks cannot reach each other's memory.
        """
        if bucket_size_mb is not None and not bucket_size_mb > 0:
            raise ValueError(f"bucket_size_mb is {bucket_size_mb}; allowed: numbers above 0, and None")
        super().__init__(module, process_group=process_group)
        rank, ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        size = MB * (MB_PER_RANK * ranks if bucket_size_mb is None else bucket_size_mb)
        messages = make_messages(self._trainable, min(size, SMALL_BYTES))
        layout = Layout([size_of(message) for message in messages], ranks)
        device = self._trainable[0].device
        self._memory = allocate(layout.size, device, process_group)
        groups = group_sizes([(None, message) for message in layout.sizes], size)
        self._exchanges = [Exchange(messages, indices, layout, self._memory, rank) for indices in groups]
        self._plan(self._exchanges)
        self._device = device
        self._sent: list[list[Tensor]] = []  # gradients that other streams use, kept even if `grad` is replaced
        # Arrived gradients are averaged before anything else, since other ranks wait for the mean.
        self._sending, self._averaging = new_stream(device), new_stream(device, priority=-1)
        self._computed, self._all_sent = new_event(device), new_event(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            "a SymmetricMemoryDataParallel cannot be copied; allowed: a new one for copy.deepcopy(its module)"
        )

    def _send(self, bucket: Bucket) -> None:
        assert isinstance(bucket, Exchange)
        gradients = [message.gather() for message in bucket.messages]
        self._sent.append(gradients)
        self._computed.record()
        self._computed.wait(self._sending)
        with self._sending:
            for index, slot in bucket.sent:
                slot.copy_(gradients[index])
        self._all_sent.record(self._sending)
        self._all_sent.wait(self._averaging)
        with self._averaging:
            self._memory.barrier()  # All contributions have arrived.
            owned = [gradients[index] for index in bucket.owned]
            for number, contributions in enumerate(bucket.contributions if owned else [], start=1):
                # Running mean of number + 1 gradients. A sum and a division would read the memory twice.
                torch._foreach_lerp_(owned, contributions, 1 / (number + 1))
            for index, slot in bucket.returned:
                slot.copy_(gradients[index])

    def _wait(self) -> None:
        with self._averaging:
            self._memory.barrier()  # All means have arrived, and the next step may overwrite the slots.
        current_stream(self._device).wait_stream(self._averaging)
        for exchange in self._exchanges:
            for parameter, mean in exchange.received:
                if parameter.grad is not None:  # zero_grad() drops a step whose gradients are in flight.
                    parameter.grad = mean
        self._sent.clear()


class Layout:
    """Owners of the messages, and their slots in the memory of each rank.

    The owner has a slot for each other rank's contribution; each other rank has a slot for the mean.
    """

    def __init__(self, sizes: Sequence[int], ranks: int):
        self.sizes = sizes
        self.ranks = ranks
        self.owners = assign_owners(sizes, ranks)
        ends = [0] * ranks
        self._starts: list[list[int]] = []  # for each message, on each rank
        for size, owner in zip(sizes, self.owners, strict=True):
            self._starts.append(list(ends))
            for rank in range(ranks):
                ends[rank] += aligned(size, ALIGNMENT) * (ranks - 1 if rank == owner else 1)
        self.size = max(*ends, ALIGNMENT)
        """Bytes of memory that each rank needs."""

    def slot(self, message: int, holder: int, sender: int) -> slice:
        """The bytes in the memory of `holder` into which `sender` writes a message; one of the two is its owner."""
        owner = self.owners[message]
        number = sender - (sender > owner) if holder == owner else 0
        start = self._starts[message][holder] + number * aligned(self.sizes[message], ALIGNMENT)
        return slice(start, start + self.sizes[message])


class Exchange(Bucket):
    """Messages that are sent together, and their slots, as seen from this rank."""

    def __init__(
        self, messages: Sequence[Bucket], indices: Sequence[int], layout: Layout, memory: SymmetricMemory, rank: int
    ):
        self.messages = [messages[i] for i in indices]
        super().__init__([parameter for message in self.messages for parameter in message.parameters])

        def slot(number: int, holder: int, sender: int) -> Tensor:
            return as_gathered(
                memory.of_rank[holder][layout.slot(indices[number], holder, sender)], messages[indices[number]]
            )

        # Each rank starts with a different one, so that no two write to the same rank at a time if messages are of
        # equal size.
        others = [(rank + distance) % layout.ranks for distance in range(1, layout.ranks)]
        owners = [layout.owners[i] for i in indices]
        numbers = range(len(indices))
        self.owned = [number for number in numbers if owners[number] == rank]
        self.sent = [
            (number, slot(number, holder=other, sender=rank))
            for other in others
            for number in numbers
            if owners[number] == other
        ]
        """Messages that this rank sends to their owners, and the slots it writes to."""
        self.contributions = [
            [slot(number, holder=rank, sender=other) for number in self.owned] for other in sorted(others)
        ]
        """For each other rank, its contributions to the messages that this rank owns."""
        self.returned = [(number, slot(number, holder=other, sender=rank)) for other in others for number in self.owned]
        """Means that this rank returns to the others, and the slots it writes to."""
        self.received = [
            pair
            for number in numbers
            if owners[number] != rank
            for pair in zip(
                self.messages[number].parameters,
                views_like(slot(number, holder=rank, sender=owners[number]), self.messages[number].parameters),
                strict=True,
            )
        ]
        """Parameters that other ranks own, and the slots of their means."""


def make_messages(parameters: Sequence[nn.Parameter], small: float) -> list[Bucket]:
    """Make messages in the order of completion: gradients of at least `small` bytes alone, smaller ones together."""
    position = {parameter: i for i, parameter in enumerate(parameters)}
    large = [Bucket([parameter]) for parameter in parameters if parameter.nbytes >= small]
    others = fill_buckets([parameter for parameter in parameters if parameter.nbytes < small], small)
    return sorted([*large, *others], key=lambda message: position[message.parameters[-1]])


def assign_owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Assign an owner to each message, in order: the rank with the least load so far."""
    owned = [0] * ranks
    owners = []
    for size in sizes:
        owner = owned.index(min(owned))
        owned[owner] += size
        owners.append(owner)
    return owners


def as_gathered(slot: Tensor, message: Bucket) -> Tensor:
    """The bytes of a slot, as a tensor like the result of `message.gather()`."""
    first, *others = message.parameters
    numbers = slot.view(first.dtype)
    return numbers if others else dense_view(numbers, 0, first)


def size_of(message: Bucket) -> int:
    """Bytes of a message."""
    return sum(parameter.nbytes for parameter in message.parameters)
