"""Fully sharded data parallelism: each rank keeps a part of every large weight, of its gradient and optimizer state.

    model = FullyShardedDataParallel(model, compute_dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    loss(model(inputs), targets).backward()
    model.finish_gradient_synchronization()
    optimizer.step()

This is ZeRO stage 3 (Rajbhandari et al. 2020) with the interface of `data_parallel`. Weights are gathered before a
layer uses them, freed after it, and gathered again for its backward pass; from the second pass on, while the layers
before it are computed. The loss is a mean over the rank's examples, of which all ranks have the same number.

Without a compute_dtype, two ranks train to the bit as `data_parallel` does, and as one process would that computes the
gradients of both halves of the batch and takes their mean: a sum of two numbers is rounded once, and halving is exact.
One process on the whole batch adds up the same terms in another order: a gradient is off by at most n·u times the sum
of the magnitudes of its n terms, one per token, with u = 2^-24 in fp32 (Higham 2002, section 4.2). More than two ranks
add up their gradients in an order that the backend chooses, within the same bound.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cs336_systems.parallel.data_parallel import FlatDataParallel
from cs336_systems.parallel.lane import Lane, Transfer
from cs336_systems.parallel.limits import REDUCTIONS
from cs336_systems.parallel.replicas import replicate
from cs336_systems.parallel.sharded_state import keep_state_sharded
from cs336_systems.parallel.sharded_weight import ShardedWeight, reduce
from cs336_systems.parallel.timeline import Timeline
from cs336_systems.parallel.units import Unit, divide, shard_weights


class FullyShardedDataParallel(nn.Module):
    """Shards the weight of every Linear and Embedding over the ranks of the default process group.

    Outside a layer's forward pass, `layer.weight` and what `parameters()` gives are shards: parameters with this rank's
    rows, which the optimizer updates. Other parameters are on all ranks, and their gradients averaged. `state_dict` has
    DTensors for the shards.

    All ranks have to use the same layers in the same order, or they wait for each other forever. In
    `torch.nn.utils.clip_grad_norm_` each rank would see the norm of its own shards: `clip_grad_norm_` here sees all.
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        together: Sequence[type[nn.Module]] = (),
    ):
        """Shard a module, which all ranks have built alike; it gets rank 0's parameters and buffers.

        Args:
            module: what is trained. A block that is to be compiled is replaced by `torch.compile(block)` before.
            compute_dtype: dtype in which weights and gradients travel and layers compute: their weights, biases and
                floating-point inputs are cast. Shards and their gradients keep the parameters' dtype. None: no cast.
            together: classes of modules, such as the Transformer's block, whose layers' weights are gathered in one
                call, and reduced in one: fewer calls, more memory. By default each layer is by itself. A compiled
                module always is one of these.

        Raises:
            ValueError: the ranks' modules differ, nothing is to be trained, the compute_dtype is not floating-point, an
                embedding has sparse gradients or renormalizes itself, or a module was compiled in place or is sharded
                already.
        """
        super().__init__()
        check(module, compute_dtype)
        self.module: nn.Module = module
        self._compute_dtype = compute_dtype
        replicate(module)
        places = shard_weights(module, compute_dtype)
        self._weights = list(dict.fromkeys(places.values()))
        modules, self._units = divide(module, tuple(together), places)
        shards = self.sharded_weights
        rest = nn.ParameterList(parameter for parameter in module.parameters() if parameter not in shards)
        # In a tuple, which hides it from what looks for submodules.
        self._replicas = (FlatDataParallel(rest),) if any(parameter.requires_grad for parameter in rest) else ()
        self._lane = Lane(next(module.parameters()).device)
        self._training, self._evaluation = Timeline(), Timeline()
        self._timeline = self._training
        self._reductions: deque[Transfer] = deque()
        self._arrived = False  # whether gradients wait for finish_gradient_synchronization
        self._accumulating = False
        # Hooks hold no reference to the wrapper, as in data_parallel. They stay when it is gone, and say so.
        this = weakref.ref(self)
        keep_state_sharded(places)
        for unit, part in zip(self._units, modules, strict=True):
            part.register_forward_pre_hook(before_forward(this, unit.index), with_kwargs=True)
            part.register_forward_hook(after_forward(this, unit.index), always_call=True)
            for position, weight in enumerate(unit.owed):
                weight.whole.register_post_accumulate_grad_hook(on_arrival(this, unit.index, position))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns.

        Raises:
            RuntimeError: the gradients of the last backward pass were not synchronized.
        """
        if torch._C._current_graph_task_id() != -1:  # in a backward pass, which computes a checkpointed part again
            return self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._evaluate(*args, **kwargs)
        if self._arrived:
            raise RuntimeError("finish_gradient_synchronization() was not called after the last backward pass")
        self._free_all()
        self._timeline.begin_pass()
        return self.module(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self._evaluation.begin_pass()
        self._timeline = self._evaluation
        try:
            return self.module(*args, **kwargs)
        finally:
            self._timeline = self._training
            self._free_unused(self._weights)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context add to the gradients of a later one: gradient accumulation.

        Put all backward passes of a step but the last into it, as in `data_parallel`. Gradients of sharded weights are
        reduced all the same, and added up in the shards' dtype: whole gradients of all weights would take as much
        memory as sharding has saved.
        """
        if self._arrived:
            raise RuntimeError("no_sync() begins between a backward pass and finish_gradient_synchronization()")
        before, self._accumulating = self._accumulating, True
        try:
            with contextlib.ExitStack() as stack:
                for replicas in self._replicas:
                    stack.enter_context(replicas.no_sync())
                yield
        finally:
            self._accumulating = before

    def finish_gradient_synchronization(self) -> None:
        """Wait for the mean of all gradients: on a GPU the current stream waits, not the host. All ranks call it.

        Call it after a step's last backward pass and before gradients are clipped or used. Where no rank has a
        gradient, it remains None.
        """
        for unit in self._units:
            if unit.arrived:  # but not all of them
                self._reduce(unit)
        while self._reductions:
            self._reductions.popleft().wait()
        for weight in self._weights:
            weight.give_gradient()
        for replicas in self._replicas:
            replicas.finish_gradient_synchronization()
        self._free_all()  # The optimizer is about to change them.
        self._arrived = False

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the gradients, so that the norm of all of them together is at most `max_norm`. All ranks call it.

        Returns the norm before, the square root of the sum of all squares.
        """
        shards = self.sharded_weights
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for parameter in self.parameters():
            if parameter.grad is not None:
                parts[parameter in shards].append(parameter.grad)
        squares = nn.utils.get_total_norm(parts[True]).to(self._lane.device) ** 2
        dist.all_reduce(squares)
        norm = (squares + nn.utils.get_total_norm(parts[False]).to(self._lane.device) ** 2).sqrt()
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    @property
    def sharded_weights(self) -> dict[nn.Parameter, ShardedWeight]:
        """What each shard is a part of."""
        return {weight.shard: weight for weight in self._weights}

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Copies of all parameters, whole and in their own dtype, by their names in the module. All ranks call it."""
        whole = {shard: weight.gather_shards() for shard, weight in self.sharded_weights.items()}
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: whole[p] if p in whole else p.detach().clone() for name, p in named}

    def _begin_use(self, unit: Unit, backward: bool) -> None:
        """Make the weights of a unit whole, and start to gather those that are needed next."""
        for weight in unit.weights:
            weight.users.add((unit.index, backward))
        self._timeline.note(unit.index)
        unit.gather(self._lane)
        for index in self._timeline.upcoming():
            self._units[index].gather(self._lane)
        for weight in unit.weights:
            weight.wait_for_arrival()

    def _end_use(self, unit: Unit, backward: bool) -> None:
        for weight in unit.weights:
            weight.users.discard((unit.index, backward))
        self._free_unused(unit.weights)

    def _free_unused(self, weights: Iterable[ShardedWeight]) -> None:
        """Free those of the weights that nobody uses now or is about to use."""
        soon = {weight for index in self._timeline.upcoming() for weight in self._units[index].weights}
        for weight in weights:
            if weight.is_whole and not weight.users and weight not in soon:
                weight.free()

    def _free_all(self) -> None:
        for weight in self._weights:
            weight.users.clear()
            if weight.is_whole:
                weight.free()

    def _begin_backward(self, unit: Unit) -> None:
        """The gradient of an output of the unit is there; there may be several outputs, and uses."""
        if (unit.index, True) not in unit.weights[0].users:
            self._begin_use(unit, backward=True)

    def _gradient_arrived(self, unit: Unit, weight: ShardedWeight) -> None:
        """The gradient of a weight is complete, and with it the backward pass of whatever uses it."""
        self._arrived = not self._accumulating
        weight.users.clear()
        self._free_unused([weight])
        if weight not in unit.arrived:
            unit.arrived.append(weight)
        if len(unit.arrived) == len(unit.owed):
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        """Reduce the gradients of a unit that have arrived."""
        while len(self._reductions) >= REDUCTIONS:
            self._reductions.popleft().wait()
        weights, unit.arrived = unit.arrived, []
        gradients = [weight.take_gradient() for weight in weights]
        received: list[Tensor] = []

        def add_up() -> None:
            for weight, rows in zip(weights, received, strict=True):
                weight.add_reduced(rows)

        send = partial(reduce, gradients, received)
        self._reductions.append(self._lane.start(send, then=add_up, reads=gradients))


def check(module: nn.Module, compute_dtype: torch.dtype | None) -> None:
    """Refuse what cannot be sharded."""
    if compute_dtype is not None and not compute_dtype.is_floating_point:
        raise ValueError(f"compute_dtype is {compute_dtype}; allowed: floating-point dtypes, and None")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError("the module has no parameter that requires a gradient: there is nothing to synchronize")
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) and (part.sparse or part.max_norm is not None):
            raise ValueError(
                f"{name or 'the module'} is an embedding with sparse={part.sparse} and max_norm={part.max_norm}; "
                "allowed: sparse=False and max_norm=None"
            )
        if isinstance(part, FullyShardedDataParallel):
            raise ValueError(f"{name or 'the module'} is sharded already; allowed: a module that is not")
        if part._compiled_call_impl is not None:
            raise ValueError(f"{name or 'the module'} was compiled in place; allowed: torch.compile(module)")


def cast(values: Any, dtype: torch.dtype) -> Any:
    """Arguments, with floating-point tensors cast."""

    def cast_one(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(cast_one, values)


def tensors_with_gradient(values: Any) -> list[Tensor]:
    """Those among arguments or results."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.requires_grad]


Wrapper = weakref.ref[FullyShardedDataParallel]


def alive(this: Wrapper) -> FullyShardedDataParallel:
    """The wrapper, which holds the weights.

    Raises:
        RuntimeError: it is gone.
    """
    wrapper = this()
    if wrapper is None:
        raise RuntimeError("the FullyShardedDataParallel that gathers the weights of this module is gone: keep it")
    return wrapper


def call_after_gradients(tensors: Sequence[Tensor], action: Callable[[], None]) -> None:
    """Let the backward pass call `action` once it has the gradients of all tensors."""
    # torch.autograd.graph.register_multi_grad_hook would keep the graph alive, in a cycle.
    missing = len(tensors)

    def count(gradient: Tensor) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            action()

    for tensor in tensors:
        tensor.register_hook(count)


def before_forward(this: Wrapper, index: int) -> Callable[..., Any]:
    """A hook that makes a unit's weights whole."""

    def end_backward() -> None:
        wrapper = alive(this)
        wrapper._end_use(wrapper._units[index], backward=True)

    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        wrapper = alive(this)
        unit, dtype = wrapper._units[index], wrapper._compute_dtype
        wrapper._begin_use(unit, backward=False)
        unit.show_whole(dtype)
        if unit.has_ambiguous_gradients:
            call_after_gradients(tensors_with_gradient((args, kwargs)), end_backward)
        return (args, kwargs) if dtype is None else cast((args, kwargs), dtype)

    return torch.compiler.disable(hook)


def after_forward(this: Wrapper, index: int) -> Callable[..., None]:
    """A hook that frees a unit's weights, and sees to it that they are whole in the backward pass."""

    def begin_backward(gradient: Tensor) -> None:
        wrapper = alive(this)
        wrapper._begin_backward(wrapper._units[index])

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        wrapper = alive(this)
        unit = wrapper._units[index]
        unit.show_shards()
        wrapper._end_use(unit, backward=False)
        if not isinstance(module, nn.Embedding):  # whose backward pass reads only the token ids
            for tensor in tensors_with_gradient(output):
                tensor.register_hook(begin_backward)

    return torch.compiler.disable(hook)


def on_arrival(this: Wrapper, index: int, position: int) -> Callable[[Tensor], None]:
    """A hook that notes that the gradient of a whole weight is complete."""

    def hook(parameter: Tensor) -> None:
        wrapper = alive(this)
        unit = wrapper._units[index]
        wrapper._gradient_arrived(unit, unit.owed[position])

    return hook
