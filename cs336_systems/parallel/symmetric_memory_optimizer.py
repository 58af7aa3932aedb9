"""A sharded optimizer without collectives: owners write updated parameters into the other ranks' memory."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from cs336_systems.parallel.sharded_buckets import ShardedBucket
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.parallel.streams import Stream, current_stream, new_stream
from cs336_systems.parallel.symmetric_memory import allocate


class SymmetricMemoryBucket(ShardedBucket):
    """A bucket of parameters in symmetric memory, to which the other ranks may write."""

    def send(self) -> None:
        """Write this rank's updated parameters to the other ranks, in the current stream.

        No rank may read the parameters meanwhile: `barrier` before and after.
        """
        self.mark_updated()
        if self.owner not in (None, self.rank):
            return
        # Each rank starts with a different one, so that no two write to the same rank at a time.
        for distance in range(1, self.ranks):
            there = self._of_rank[(self.rank + distance) % self.ranks]
            self.my_slot(there).copy_(self.my_slot(self._flat))

    def barrier(self) -> None:
        """Wait until all ranks have called it; on a GPU the current stream waits, not the host."""
        self._memory.barrier()

    def _zeros(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        self._memory = allocate(numel * dtype.itemsize, device, self.group)
        self._of_rank = [memory.view(dtype) for memory in self._memory.of_rank]
        return self._of_rank[self.rank].zero_()


class SymmetricMemoryShardedOptimizer(ShardedOptimizer):
    """A `ShardedOptimizer` whose parameters lie in symmetric memory and are sent without collectives.

    On GPUs, copy engines move the parameters. A collective's kernels share SMs with the updates they overlap with,
    which slows down both; copy engines need no SMs.

    All parameters must be on one device, and all ranks on one machine; a RuntimeError is raised if they cannot reach
    each other's memory.
    """

    _bucket_type = SymmetricMemoryBucket

    @cached_property
    def _sending(self) -> Stream:
        return new_stream(self._device)

    @property
    def peer_bytes(self) -> int:
        """Bytes that the parameters take up, which PyTorch's allocator does not count."""
        return sum(bucket.nbytes for bucket in self._buckets)

    def _share(self, buckets: Sequence[ShardedBucket]) -> None:
        self._sending.wait_stream(current_stream(self._device))
        with self._sending:
            for bucket in buckets:
                assert isinstance(bucket, SymmetricMemoryBucket)
                if bucket is self._buckets[0]:
                    bucket.barrier()  # No rank reads the old parameters any more.
                bucket.send()

    def _wait(self) -> None:
        if not self._buckets:
            return
        last = self._buckets[-1]
        assert isinstance(last, SymmetricMemoryBucket)
        with self._sending:
            last.barrier()  # All parameters have arrived.
        current_stream(self._device).wait_stream(self._sending)
