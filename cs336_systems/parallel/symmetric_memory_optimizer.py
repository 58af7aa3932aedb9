"""A sharded optimizer without collectives: owners write updated parameters into the other ranks' memory."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from cs336_systems.parallel.sharded_buckets import ShardedBucket
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer
from cs336_systems.parallel.streams import current_stream, new_stream
from cs336_systems.parallel.symmetric_memory import allocate


class SymmetricMemoryBucket(ShardedBucket):
    """A bucket of parameters in symmetric memory, which the other ranks may write into."""

    def send(self) -> None:
        """Write this rank's updated parameters to the other ranks, in the current stream.

        No rank may read the parameters meanwhile: `barrier` before and after.
        """
        self.mark_updated()
        if self.owner not in (None, self.rank):
            return
        for distance in range(1, self.ranks):  # Each rank begins with another one: no two write to the same at a time.
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
    """A `ShardedOptimizer` whose parameters lie in symmetric memory, sent without collectives.

    On GPUs, copy engines move the parameters. A collective's kernels share SMs with the updates that they overlap with,
    which slows down both; copy engines need no SMs. The ranks have to be on one machine.
    """

    _bucket_type = SymmetricMemoryBucket

    def __init__(
        self,
        params: ParamsT,
        optimizer_cls: type[Optimizer],
        *,
        bucket_size_mb: float = 100,
        process_group: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ):
        """Make an optimizer, as `ShardedOptimizer` does.

        Args:
            params: as there, on one device.
            optimizer_cls: as there.
            bucket_size_mb: how many 10^6 bytes of parameters set out together, at least.
            process_group: the ranks; None: all.
            kwargs: as there.

        Raises:
            ValueError: as there.
            RuntimeError: the ranks cannot reach each other's memory.
        """
        super().__init__(params, optimizer_cls, bucket_size_mb=bucket_size_mb, process_group=process_group, **kwargs)
        self._sending = new_stream(self._device)
        self._sent: list[SymmetricMemoryBucket] = []  # in this step

    @property
    def peer_bytes(self) -> int:
        """Bytes that the parameters take up, which PyTorch's allocator does not count."""
        return sum(bucket.nbytes for bucket in self._buckets)

    def _share(self, buckets: Sequence[ShardedBucket]) -> None:
        self._sending.wait_stream(current_stream(self._device))
        with self._sending:
            for bucket in buckets:
                assert isinstance(bucket, SymmetricMemoryBucket)
                if not self._sent:
                    bucket.barrier()  # No rank reads the old parameters any more.
                bucket.send()
                self._sent.append(bucket)

    def _wait(self) -> None:
        if not self._sent:
            return
        with self._sending:
            self._sent[-1].barrier()  # All parameters are there.
        current_stream(self._device).wait_stream(self._sending)
        self._sent.clear()
