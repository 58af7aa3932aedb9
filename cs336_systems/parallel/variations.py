"""Variations of the bucketed wrapper that were tried to hide more of the communication; what each buys is measured.

The names are those of the experiment `data_parallel`.
"""

import copy
import weakref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.optim import Optimizer

from cs336_systems.parallel.buckets import MB, Bucket, fill_buckets
from cs336_systems.parallel.data_parallel import BucketedDataParallel, average, in_memory_order


class GroupedDataParallel(BucketedDataParallel):
    """Tries to save the copies into buckets: a bucket's gradients stay where they are, and travel in one grouped call.

    NCCL runs the grouped all-reduces in one kernel.
    """

    def _start(self, bucket: Bucket) -> dist.Work:
        with _coalescing_manager(async_ops=True) as manager:
            for parameter in bucket.parameters:
                assert parameter.grad is not None
                dist.all_reduce(in_memory_order(parameter.grad), dist.ReduceOp.AVG)
        (work,) = manager.works
        return work


class SmallLastDataParallel(BucketedDataParallel):
    """Tries to start earlier: the last gradient, for which nothing is left to hide behind, keeps no others waiting."""

    def __init__(self, module: nn.Module, bucket_size_mb: float):
        super().__init__(module, bucket_size_mb)
        *others, last = self._trainable
        self._plan([*fill_buckets(others, bucket_size_mb * MB), Bucket([last])])


class PriorityDataParallel(BucketedDataParallel):
    """Tries to end earlier: NCCL's kernels run on a stream of high priority, and get multiprocessors first."""

    def __init__(self, module: nn.Module, bucket_size_mb: float):
        """Wrap a module, as `BucketedDataParallel` does.

        Raises:
            RuntimeError: the ranks communicate over something that has no streams.
        """
        if (backend := dist.get_backend()) != "nccl":
            raise RuntimeError(f"{backend} has no streams that could have a priority; only NCCL has")
        super().__init__(module, bucket_size_mb)
        self._group = dist.new_group(pg_options=dist.ProcessGroupNCCL.Options(is_high_priority_stream=True))
        weakref.finalize(self, dist.destroy_process_group, self._group).atexit = False

    def _start(self, bucket: Bucket) -> dist.Work:
        return average(bucket.gather(), self._group)


class Bf16WireDataParallel(BucketedDataParallel):
    """Tries to send less: gradients travel, and are added, as bf16. The price is their precision."""

    def __init__(self, module: nn.Module, bucket_size_mb: float):
        super().__init__(module, bucket_size_mb)
        self._sent: dict[Bucket, Tensor] = {}

    def _start(self, bucket: Bucket) -> dist.Work:
        self._sent[bucket] = bucket.gather().to(torch.bfloat16)
        return average(self._sent[bucket])

    def _finish(self, bucket: Bucket) -> None:
        bucket.gather().copy_(self._sent.pop(bucket))


class OptimizerOverlapDataParallel(BucketedDataParallel):
    """Tries to hide the last buckets behind the optimizer: each bucket's parameters are updated as soon as it is there.

    `finish_gradient_synchronization()` is the optimizer's step, too. Each parameter needs a gradient in each step.
    """

    def __init__(self, module: nn.Module, bucket_size_mb: float, optimizer: Optimizer):
        """Wrap a module, as `BucketedDataParallel` does, with its optimizer, whose state is used and kept up."""
        super().__init__(module, bucket_size_mb)
        (group,) = optimizer.param_groups
        self._optimizers: dict[Bucket, Optimizer] = {}
        for bucket in self._buckets:
            part = self._optimizers[bucket] = copy.copy(optimizer)  # with the same state
            part.param_groups = [group | {"params": bucket.parameters}]

    def _finish(self, bucket: Bucket) -> None:
        assert len(self._arrived) == len(self._trainable), "a parameter without a gradient"
        self._optimizers[bucket].step()
