"""An optimizer with sharded state, and a variant that never sends the last parameters."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer


class ShardedOptimizer(Optimizer):
    """Right: each rank updates every N-th parameter, and then sends it to the others."""

    def __init__(self, params: Any, optimizer_cls: type[Optimizer], **kwargs: Any):
        self.optimizer_cls, self.kwargs = optimizer_cls, kwargs
        self.owner: dict[Tensor, int] = {}
        self.own: Optimizer | None = None
        super().__init__(params, kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Assign the parameters of a group to ranks."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            self.owner[parameter] = len(self.owner) % dist.get_world_size()
        mine = [parameter for parameter in group["params"] if self.owner[parameter] == dist.get_rank()]
        part = {**group, "params": mine}
        if self.own is None:
            # A rank without parameters gets an empty group, because an optimizer needs at least one group.
            self.own = self.optimizer_cls([part], **self.kwargs)
        else:
            self.own.add_param_group(part)

    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> Any:
        """Update this rank's parameters, and receive the others from their owners."""
        for part, group in zip(self.own.param_groups, self.param_groups, strict=True):
            part.update({key: value for key, value in group.items() if key != "params"})  # as schedulers set them
        result = self.own.step(closure, **kwargs)
        self.share()
        return result

    def share(self) -> None:
        """Send every parameter from its owner."""
        for parameter, rank in self.owner.items():
            dist.broadcast(parameter.data, src=rank)


class EvenlyShardedOptimizer(ShardedOptimizer):
    """Wrong: sends the same number of parameters from each rank, so the remaining ones stay with their owners."""

    def share(self) -> None:
        """Send parameters in whole rounds of all ranks."""
        ranks = dist.get_world_size()
        for parameter, rank in list(self.owner.items())[: len(self.owner) // ranks * ranks]:
            dist.broadcast(parameter.data, src=rank)
