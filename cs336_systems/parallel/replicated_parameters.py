"""Replicated parameters of a sharded model, such as norms and biases, which every rank holds in full."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from cs336_systems.parallel.buckets import fill_buckets
from cs336_systems.parallel.collectives import absent_everywhere
from cs336_systems.parallel.data_parallel import average
from cs336_systems.parallel.distributed_parameters import (
    Place,
    check_in_place,
    check_unchanged,
    give_gradient,
    is_differentiable,
    local_part,
    outside_parameter,
)


@dataclass
class Replica:
    """A replicated parameter: a plain tensor for the model and a DTensor for all other code, in the same memory."""

    name: str
    places: Sequence[Place]
    local: nn.Parameter
    """The parameter that the module computes with: a plain tensor."""
    outside: nn.Parameter
    """The parameter that other code sees: a DTensor, replicated over the ranks."""
    memory: Tensor

    def follow(self) -> None:
        """Apply changes of the outside parameter, such as `requires_grad`, to the local one."""
        check_unchanged(self.name, self.outside, self.local.dtype, self.local.device)
        if local_part(self.outside) is not self.memory:  # Module.to_empty puts another one there
            self.memory = local_part(self.outside)
            self.local.data = self.memory
        if self.local.requires_grad != self.outside.requires_grad:
            self.local.requires_grad_(self.outside.requires_grad)


class ReplicatedParameters:
    """All replicated parameters of a model; one all-reduce per dtype averages their gradients."""

    def __init__(
        self,
        places: Mapping[str, Sequence[Place]],
        mesh: DeviceMesh,
        device: torch.device,
        on_arrival: Callable[[Tensor], None],
    ):
        """Replace parameters by DTensors over the ranks of a mesh of one dimension.

        `places` has the modules and names under which each parameter is registered, by its full name. `on_arrival` is
        called in the backward pass when a gradient is ready.
        """
        self._group = mesh.get_group()
        self._replicas = []
        for name, owners in places.items():
            owner, key = owners[0]
            local = owner._parameters[key]
            assert local is not None
            outside = outside_parameter(local.detach(), Replicate(), mesh, like=local)
            self._replicas.append(Replica(name, owners, local, outside, local_part(outside)))
            if is_differentiable(local):
                trained = local.requires_grad
                local.requires_grad_().register_post_accumulate_grad_hook(on_arrival)
                local.requires_grad_(trained)
        self._uses = 0
        self._all_used = torch.ones(len(self._replicas), dtype=torch.uint8, device=device)
        self.hide()

    def show(self) -> None:
        """Register plain tensors in the model, until `hide` has been called the same number of times."""
        self._uses += 1
        if self._uses > 1:
            return
        for replica in self._replicas:
            replica.follow()
            for owner, key in replica.places:
                check_in_place(replica.name, owner._parameters[key], replica.outside)
                owner._parameters[key] = replica.local

    def hide(self) -> None:
        """Register DTensors in the model again."""
        self._uses = max(0, self._uses - 1)
        if not self._uses:
            self.put_back()

    def put_back(self) -> None:
        """Register DTensors again, regardless of how often `show` was called: a pass may have failed."""
        self._uses = 0
        for replica in self._replicas:
            for owner, key in replica.places:
                if owner._parameters[key] is replica.local:
                    owner._parameters[key] = replica.outside

    def average_gradients(self) -> None:
        """Average the gradients of all parameters; ranks without a gradient contribute zeros.

        If no rank has a gradient, it remains None.
        """
        trained = [replica for replica in reversed(self._replicas) if replica.local.requires_grad]
        if not trained:
            return
        absent = [index for index, replica in enumerate(trained) if replica.local.grad is None]
        for index in absent:
            trained[index].local.grad = torch.zeros_like(trained[index].local)
        for bucket in fill_buckets([replica.local for replica in trained], math.inf):
            average(bucket.gather(), self._group).wait()
        for index in absent_everywhere(absent, self._all_used[: len(trained)], self._group):
            trained[index].local.grad = None
        for replica in trained:
            if replica.local.grad is not None:
                gradient, replica.local.grad = replica.local.grad, None
                give_gradient(replica.outside, gradient)

    def drop_gradients(self) -> None:
        """Drop gradients that were not averaged yet."""
        for replica in self._replicas:
            replica.local.grad = None
