"""Backward passes of a step whose gradients are averaged over ranks by any wrapper."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cs336_systems.parallel.data_parallel import DataParallel, average
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.synchronized import synchronizer_of
from cs336_systems.training.cuda_graph import calls_before_capture

REPLICATED = (DataParallel, DistributedDataParallel)
SHARDED = (FullyShardedDataParallel, FSDPModule)


class WrappedPasses:
    """Preparation and end of a step's passes, depending on the model's wrapper; nothing for a model without one.

    If each rank has full gradients, all passes but the last are local, in `no_sync()`. If gradients are sharded, each
    pass is averaged: full gradients would need the memory that sharding saves.
    """

    def __init__(self, model: nn.Module | None, parameters: Sequence[Tensor]):
        """Wrap a model's wrapper, or None, for the parameters of an optimizer.

        Raises:
            TypeError: the model is not a data-parallel wrapper.
            ValueError: as `check`, or a DistributedDataParallel and this are made on the default stream of a GPU.
        """
        self._module = model
        self._model: Any
        self._model = getattr(model, "_orig_mod", model)  # of torch.compile(wrapper)
        if model is not None and not isinstance(self._model, REPLICATED + SHARDED):
            raise TypeError(
                f"model is a {type(model).__name__}; allowed: a data-parallel wrapper of cs336_systems.parallel, "
                "DistributedDataParallel, a module after fully_shard, or None"
            )
        self.is_replicated = isinstance(self._model, REPLICATED)
        self._parameters = parameters
        self.check()
        self._check_stream()
        meshes = dict.fromkeys(p.device_mesh for p in parameters if isinstance(p, DTensor))
        self.groups: list[dist.ProcessGroup | None] = [group for mesh in meshes for group in mesh.get_all_groups()]
        """Process groups of the ranks that share a batch."""
        if self.is_replicated:
            self.groups = [self._model.process_group]

    def _check_stream(self) -> None:
        """Refuse a DistributedDataParallel on the default stream: it adds gradients on the stream of its making."""
        if not isinstance(self._model, DistributedDataParallel) or not any(p.is_cuda for p in self._parameters):
            return
        if torch.cuda.current_stream() == torch.cuda.default_stream():
            raise ValueError(
                "DistributedDataParallel adds gradients on the stream on which it was built, and the default stream "
                "cannot be captured; build it and this step under torch.cuda.stream(torch.cuda.Stream())"
            )

    @property
    def calls_before_capture(self) -> int:
        """Eager calls before a capture."""
        return calls_before_capture(self._model)

    def check(self) -> None:
        """Raise a ValueError unless the wrapper, and nothing else, averages the gradients."""
        trained = [p for p in self._parameters if p.requires_grad]
        if self._model is None:
            for wrapper in filter(None, map(synchronizer_of, trained)):
                name = getattr(wrapper, "__name__", type(wrapper).__name__)
                raise ValueError(f"{name} averages the gradients; allowed: CapturedStep(..., model=the wrapper)")
            return
        theirs = set(self._model.parameters())
        for parameter in trained:
            averaged = self.is_replicated or isinstance(parameter, DTensor)
            if parameter not in theirs or not averaged:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} whose gradient model, a "
                    f"{type(self._model).__name__}, does not average; allowed: parameters of model.parameters()"
                )

    def local(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """The context of forward and backward of a micro-batch."""
        if self.is_replicated and not last:
            no_sync: contextlib.AbstractContextManager[None] = self._model.no_sync()
            return no_sync
        return contextlib.nullcontext()

    def run(self, loss_function: Callable[..., Any], batch: Iterable[Tensor], *, last: bool) -> Any:
        """Call a loss function; a ValueError if it did not call a DistributedDataParallel, which averages only then."""
        if not last or not isinstance(self._module, DistributedDataParallel):
            return loss_function(*batch)
        calls: list[Any] = []
        handle = self._module.register_forward_pre_hook(lambda *_: calls.append(None))
        try:
            loss = loss_function(*batch)
        finally:
            handle.remove()
        if not calls:
            raise ValueError("the loss function did not call model, a DistributedDataParallel; allowed: model(...)")
        return loss

    def finish(self, *, last: bool) -> None:
        """Complete the gradients after a backward pass."""
        if hasattr(self._model, "finish_gradient_synchronization") and (last or not self.is_replicated):
            self._model.finish_gradient_synchronization()

    def unit(self, tokens: int) -> Tensor | int:
        """This rank's number of tokens or, if each pass is averaged over the ranks, the mean of all ranks' numbers."""
        if self.is_replicated or not self.groups:
            return tokens
        return self.mean(torch.full((), tokens, dtype=torch.float32, device=self._parameters[0].device))

    def mean(self, number: Tensor) -> Tensor:
        """The mean of a number over the ranks that share a batch."""
        number = number.detach().clone()
        for group in self.groups:
            average(number, group).wait()
        return number

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradients by their norm on all ranks, and return it."""
        if hasattr(self._model, "clip_grad_norm_"):
            of_all_ranks: Tensor = self._model.clip_grad_norm_(max_norm)
            return of_all_ranks
        norm = nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
