"""Data parallelism that sends each mean gradient only to the parameter's owner, as in ZeRO stages 1 and 2.

    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
    model = ShardedGradientsDataParallel(model, optimizer)
    loss(model(inputs), targets).backward()
    model.finish_gradient_synchronization()
    model.clip_grad_norm_(1.0)
    optimizer.step()

A reduce-scatter sends half as many bytes as an all-reduce. With the parameters that the optimizer then gathers, a step
sends as many bytes as plain data parallelism: twice instead of three times the parameters' size.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.parallel.buckets import Bucket
from cs336_systems.parallel.collectives import averaging, reduce_scatter_single
from cs336_systems.parallel.data_parallel import OverlappedDataParallel
from cs336_systems.parallel.sharded_buckets import ShardedBucket
from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer

IN_FLIGHT = 2
"""Buckets of gradients in flight at a time; only these need memory in addition to the gradients that a rank keeps."""


NORMS = {torch.linalg.vector_norm, torch._foreach_norm}
"""The functions with which PyTorch's `clip_grad_norm_` and `get_total_norm` compute each gradient's norm."""


class GradientOfOneRank(Tensor):
    """A gradient that cannot be clipped by the norm of one rank's gradients, since that norm differs between ranks."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in NORMS:
            raise RuntimeError(
                "each rank has different gradients, so no rank has the norm of all; allowed: clip_grad_norm_() of "
                "the ShardedGradientsDataParallel, which returns it"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class OwnedGradients(Bucket):
    """The gradients of one of the optimizer's buckets, laid out like its parameters."""

    def __init__(self, bucket: ShardedBucket):
        super().__init__(bucket.parameters)
        self._bucket = bucket
        self._means: list[weakref.ref[Tensor]] = []  # of this rank's parameters, in the last step

    def reduce(self) -> dist.Work:
        """Start to replace each gradient by its mean on its owner, and by None elsewhere; `wait` before it is used."""
        for mean_of_last_step, parameter in zip(self._means, self._bucket.mine, strict=False):
            if parameter.grad is mean_of_last_step():
                raise RuntimeError(
                    "only the owners have the last step's mean gradients, so nothing can be added to them: call "
                    "zero_grad(set_to_none=True) between steps, and put all backward passes of a step but the last "
                    "into no_sync()"
                )
        bucket = self._bucket
        gradients = bucket.empty_like()
        present = [gradient for parameter in bucket.parameters if (gradient := parameter.grad) is not None]
        assert len(present) == len(bucket.parameters), "a parameter without a gradient"
        torch._foreach_copy_(bucket.views(gradients), present)
        for parameter in bucket.parameters:
            parameter.grad = None
        operation = averaging([gradients], bucket.group)
        if bucket.owner is None:
            slot = gradients.new_empty(bucket.slot_size)
            work = reduce_scatter_single(slot, gradients, op=operation, group=bucket.group, async_op=True)
        else:
            slot = gradients
            work = dist.reduce(gradients, group_dst=bucket.owner, op=operation, group=bucket.group, async_op=True)
        means = bucket.my_views(slot)
        # One gradient per bucket is enough to refuse.
        means[:1] = [mean.as_subclass(GradientOfOneRank) for mean in means[:1]]
        for parameter, mean in zip(bucket.mine, means, strict=True):
            parameter.grad = mean
        self._means = [weakref.ref(mean) for mean in means]
        return work


class ShardedGradientsDataParallel(OverlappedDataParallel):
    """One reduce-scatter per bucket of the optimizer, started when the backward pass has computed its gradients.

    After `finish_gradient_synchronization()` the rank that owns a parameter has the mean of its gradients over all
    ranks; on the others the gradient is None. Gradients of other ranks' parameters are freed during the backward pass.

    Clip with this class's `clip_grad_norm_`: `torch.nn.utils.clip_grad_norm_` sees only one rank's gradients and is
    refused. `torch.amp.GradScaler` and elementwise functions such as `clip_grad_value_` work as usual.
    """

    def __init__(self, module: nn.Module, optimizer: ShardedOptimizer):
        """Wrap a module, as `DataParallel` does, in the process group of its optimizer.

        Args:
            module: the module to train.
            optimizer: its parameters must be exactly the module's parameters that require a gradient.

        Raises:
            ValueError: as `DataParallel`, or the optimizer has other parameters.
        """
        super().__init__(module, process_group=optimizer.process_group)
        self._optimizer = optimizer
        buckets = optimizer.buckets
        theirs = {parameter for bucket in buckets for parameter in bucket.parameters}
        missing = [name for name, p in zip(self._names, self._trainable, strict=True) if p not in theirs]
        if missing or len(theirs) > len(self._trainable):
            gap = f"does not have {missing[0]}" if missing else "has parameters that are not the module's"
            raise ValueError(
                f"the optimizer {gap}; allowed: all parameters of the module that require a gradient, and no others"
            )
        self._plan([OwnedGradients(bucket) for bucket in buckets])

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            "a ShardedGradientsDataParallel cannot be copied with its optimizer; allowed: new ones for "
            "copy.deepcopy(its module)"
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients down so that their common norm is at most `max_norm`. All ranks call this.

        Arguments and result are as in `torch.nn.utils.clip_grad_norm_` with plain data parallelism: the norm before
        clipping is returned, a scalar tensor on the gradients' device. The host does not wait.
        """
        in_order = self._trainable[::-1]
        gradients = [parameter.grad for parameter in in_order if parameter.grad is not None]
        with torch._C.DisableTorchFunctionSubclass():
            mine = iter(torch._foreach_norm(gradients, norm_type) if gradients else ())
        zeros = {
            dtype: torch.zeros((), dtype=dtype.to_real(), device=in_order[0].device)
            for dtype in {p.dtype for p in in_order}
        }
        norms = [zeros[parameter.dtype] if parameter.grad is None else next(mine) for parameter in in_order]
        all_norms = torch.stack(norms)
        dist.all_reduce(all_norms, group=self.process_group)  # each is zero except on one rank
        norm = torch.linalg.vector_norm(all_norms, norm_type)
        nn.utils.clip_grads_with_norm_(in_order, max_norm, norm)
        return norm

    def _send(self, bucket: Bucket) -> None:
        assert isinstance(bucket, OwnedGradients)
        if len(self._running) >= IN_FLIGHT:
            self._running[-IN_FLIGHT].wait()
        self._running.append(bucket.reduce())

    def _average_gradients(self) -> None:
        if len(self._optimizer.buckets) != len(self._buckets):
            raise RuntimeError("the optimizer has parameters unknown to the wrapper: wrap the module again")
        super()._average_gradients()
