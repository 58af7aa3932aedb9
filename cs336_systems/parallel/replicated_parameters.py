"""Parameters of a sharded model that every rank holds whole, such as those of norms and biases."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from cs336_systems.parallel.buckets import fill_buckets
from cs336_systems.parallel.data_parallel import average
from cs336_systems.parallel.distributed_parameters import (
    Place,
    check_in_place,
    check_unchanged,
    give_gradient,
    local_part,
    outside_parameter,
)


@dataclass
class Replica:
    """A parameter, as the model computes with it and as others see it, in the same memory."""

    name: str
    places: Sequence[Place]
    local: nn.Parameter
    """The module's own, a plain tensor."""
    outside: nn.Parameter
    """A DTensor, replicated over the ranks."""
    memory: Tensor
    """The local part of `outside`."""

    def follow(self) -> None:
        """Let the module's own parameter be what has become of the one that others see.

        Raises:
            RuntimeError: it has got another dtype or device, or a hook that would never run.
        """
        check_unchanged(self.name, self.outside, self.local.dtype, self.local.device)
        if local_part(self.outside) is not self.memory:  # Module.to_empty puts another one there
            self.memory = local_part(self.outside)
            self.local.data = self.memory
        if self.local.requires_grad != self.outside.requires_grad:
            self.local.requires_grad_(self.outside.requires_grad)


class ReplicatedParameters:
    """All of a model's, which averages their gradients with one all-reduce per dtype, as `FlatDataParallel` does."""

    def __init__(
        self,
        places: Mapping[str, Sequence[Place]],
        mesh: DeviceMesh,
        device: torch.device,
        on_arrival: Callable[[Tensor], None],
    ):
        """Put DTensors in the places of parameters.

        Args:
            places: where each parameter is, by its name.
            mesh: the ranks, in one dimension.
            device: where this rank's parameters are.
            on_arrival: called in the backward pass when a gradient is there.
        """
        self._group = mesh.get_group()
        self._replicas = []
        for name, owners in places.items():
            owner, key = owners[0]
            local = owner._parameters[key]
            assert local is not None
            outside = outside_parameter(local.detach(), Replicate(), mesh, like=local)
            self._replicas.append(Replica(name, owners, local, outside, local_part(outside)))
            if local.is_floating_point():
                trained = local.requires_grad
                local.requires_grad_().register_post_accumulate_grad_hook(on_arrival)
                local.requires_grad_(trained)
        self._uses = 0
        self._all_used = torch.ones(len(self._replicas), dtype=torch.uint8, device=device)
        self.hide()

    def show(self) -> None:
        """Let the model have plain tensors, until `hide` has been called as often.

        Raises:
            RuntimeError: a parameter was replaced, or became what it cannot be.
        """
        self._uses += 1
        if self._uses > 1:
            return
        for replica in self._replicas:
            replica.follow()
            for owner, key in replica.places:
                check_in_place(replica.name, owner._parameters[key], replica.outside)
                owner._parameters[key] = replica.local

    def hide(self) -> None:
        """Let the model have DTensors again."""
        self._uses = max(0, self._uses - 1)
        if not self._uses:
            self.put_back()

    def put_back(self) -> None:
        """Let the model have DTensors again, however often it was shown plain ones: a pass may have failed."""
        self._uses = 0
        for replica in self._replicas:
            for owner, key in replica.places:
                if owner._parameters[key] is replica.local:
                    owner._parameters[key] = replica.outside

    def average_gradients(self) -> None:
        """Give all parameters the means of their gradients; where no rank has one, it remains None.

        Ranks without a gradient count as zeros, and learn from the others whether they have one.
        """
        trained = [replica for replica in reversed(self._replicas) if replica.local.requires_grad]
        if not trained:
            return
        absent = [index for index, replica in enumerate(trained) if replica.local.grad is None]
        for index in absent:
            trained[index].local.grad = torch.zeros_like(trained[index].local)
        for bucket in fill_buckets([replica.local for replica in trained], math.inf):
            average(bucket.gather(), self._group).wait()
        for index in self._unused(absent, len(trained)):
            trained[index].local.grad = None
        for replica in trained:
            if replica.local.grad is not None:
                gradient, replica.local.grad = replica.local.grad, None
                give_gradient(replica.outside, gradient)

    def _unused(self, absent: list[int], trained: int) -> list[int]:
        """Those that no rank has used; only a rank that asks has to wait for the answer."""
        used = self._all_used[:trained]  # The largest of ones and anything is one, so these never change.
        if absent:
            used = used.clone()
            used[absent] = 0
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self._group)
        return [index for index in absent if not used[index]]

    def drop_gradients(self) -> None:
        """Forget what was not averaged yet."""
        for replica in self._replicas:
            replica.local.grad = None
