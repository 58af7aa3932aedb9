"""Variations of the bucketed wrapper that try to hide more of the communication.

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
from cs336_systems.parallel.collectives import averaging
from cs336_systems.parallel.data_parallel import BucketedDataParallel, average, in_memory_order


class GroupedDataParallel(BucketedDataParallel):
    """Tries to save the copies into buckets: one grouped call sends a bucket's gradients in place.

    NCCL runs the grouped all-reduces in one kernel.
    """

    def _start(self, bucket: Bucket) -> dist.Work:
        with _coalescing_manager(self.process_group, async_ops=True) as manager:
            for parameter in bucket.parameters:
                assert parameter.grad is not None
                operation = averaging([parameter.grad], self.process_group)
                dist.all_reduce(in_memory_order(parameter.grad), operation, group=self.process_group)
        (work,) = manager.works
        return work


class SmallLastDataParallel(BucketedDataParallel):
    """Tries to start earlier: the last gradient, which nothing can hide, has a bucket of its own."""

    def __init__(self, module: nn.Module, bucket_size_mb: float, *, process_group: dist.ProcessGroup | None = None):
        super().__init__(module, bucket_size_mb, process_group=process_group)
        *others, last = self._trainable
        self._plan([*fill_buckets(others, bucket_size_mb * MB), Bucket([last])])


class PriorityDataParallel(BucketedDataParallel):
    """Tries to end earlier: NCCL's kernels run on a stream of high priority, and get SMs first."""

    def __init__(self, module: nn.Module, bucket_size_mb: float, *, process_group: dist.ProcessGroup | None = None):
        """Wrap a module, as `BucketedDataParallel` does.

        Raises:
            RuntimeError: the ranks' backend has no streams.
        """
        if (backend := dist.get_backend(process_group)) != "nccl":
            raise RuntimeError(f"{backend} has no streams that could have a priority; only NCCL has")
        super().__init__(module, bucket_size_mb, process_group=process_group)
        self._urgent = dist.new_group(
            dist.get_process_group_ranks(process_group),
            pg_options=dist.ProcessGroupNCCL.Options(is_high_priority_stream=True),
            use_local_synchronization=process_group is not None,
        )
        weakref.finalize(self, dist.destroy_process_group, self._urgent).atexit = False

    def _start(self, bucket: Bucket) -> dist.Work:
        return average(bucket.gather(), self._urgent)


class Bf16WireDataParallel(BucketedDataParallel):
    """Tries to send less: gradients are sent and added in bf16. The price is precision."""

    def __init__(self, module: nn.Module, bucket_size_mb: float, *, process_group: dist.ProcessGroup | None = None):
        super().__init__(module, bucket_size_mb, process_group=process_group)
        self._rounded: dict[Bucket, tuple[Tensor, Tensor]] = {}  # a bucket's gradients, and the tensors sent for them

    def _start(self, bucket: Bucket) -> dist.Work:
        gradients = bucket.gather()
        rounded = gradients.to(torch.bfloat16)
        self._rounded[bucket] = gradients, rounded
        return average(rounded, self.process_group)

    def _finish(self, bucket: Bucket) -> None:
        gradients, rounded = self._rounded.pop(bucket)
        gradients.copy_(rounded)


class OptimizerOverlapDataParallel(BucketedDataParallel):
    """Tries to hide the last buckets behind the optimizer: each bucket's parameters are updated once it is averaged.

    `finish_gradient_synchronization()` is also the optimizer's step. Each parameter needs a gradient in each step.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_size_mb: float,
        optimizer: Optimizer,
        *,
        process_group: dist.ProcessGroup | None = None,
    ):
        """Wrap a module, as `BucketedDataParallel` does, with its optimizer, whose state is used and kept up to
        date.
        """
        super().__init__(module, bucket_size_mb, process_group=process_group)
        (group,) = optimizer.param_groups
        self._optimizers: dict[Bucket, Optimizer] = {}
        for bucket in self._buckets:
            part = self._optimizers[bucket] = copy.copy(optimizer)  # with the same state
            part.param_groups = [group | {"params": bucket.parameters}]

    def _finish(self, bucket: Bucket) -> None:
        assert len(self._arrived) == len(self._trainable), "a parameter without a gradient"
        self._optimizers[bucket].step()
