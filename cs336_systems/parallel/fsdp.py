"""Fully sharded data parallelism: weights, gradients and optimizer state are sharded across ranks.

    model = FullyShardedDataParallel(model, compute_dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    loss(model(inputs), targets).backward()
    model.finish_gradient_synchronization()
    optimizer.step()

This is ZeRO stage 3 (Rajbhandari et al. 2020) with the interface of `data_parallel`. Weights are gathered before a
layer uses them, freed after it, and re-gathered for its backward pass. From the second pass on, gathering overlaps with
the layers before. The loss is a mean over the rank's examples; all ranks have the same number of examples.

Parameters are DTensors, as with PyTorch's `fully_shard`. So optimizers, `torch.nn.utils.clip_grad_norm_`,
`torch.amp.GradScaler` (for a `compute_dtype` of float16: all ranks skip a step in which one of them overflows), state
dicts and torch.distributed.checkpoint work in the same way:

- an optimizer that computes with whole matrices, such as Muon, gets them; an optimizer without sharding rules in
  PyTorch raises PyTorch's error (Adafactor, LBFGS over rows that the ranks cannot share evenly, `fused=True` with SGD);
- your own optimizer may compute elementwise on `p.data` and `p.grad`;
- reading a weight outside its layer's call, as in `h @ embedding.weight.T`, raises PyTorch's error about mixed tensors
  and DTensors; tie the weight of a Linear instead;
- a penalty on the weights needs its own backward pass, `penalty(model.parameters()).backward()`: its sum with a loss
  also mixes tensors and DTensors;
- change a parameter in place, under `torch.no_grad()` or by `load_state_dict`: `p.data = ...` has no effect.

Without a compute_dtype, two ranks train bit for bit like `data_parallel`, and like one process that averages the
gradients of both halves of the batch: a sum of two numbers is rounded once, and halving is exact. One process on the
whole batch adds the same terms in another order: a gradient is off by at most n·u times the sum of the magnitudes of
its n terms, one per token, with u = 2^-24 in fp32 (Higham 2002, section 4.2). More than two ranks add their gradients
in an order chosen by the backend, within the same bound.
"""

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from cs336_systems.limits import ALIGNMENT, REDUCTIONS
from cs336_systems.parallel.as_forward import as_forward
from cs336_systems.parallel.communication_stream import CommunicationStream, Transfer
from cs336_systems.parallel.distributed_parameters import count_updates, local_part, scale_by_all_ranks
from cs336_systems.parallel.gradient_norm import gradient_norm
from cs336_systems.parallel.nested import map_tensors, tensors_with_gradient
from cs336_systems.parallel.ownership import aligned
from cs336_systems.parallel.replicas import replicate
from cs336_systems.parallel.replicated_parameters import ReplicatedParameters
from cs336_systems.parallel.shardable import check
from cs336_systems.parallel.sharded_state import load_into
from cs336_systems.parallel.sharded_weight import ShardedWeight, reduce
from cs336_systems.parallel.symmetric_memory import allocate
from cs336_systems.parallel.synchronized import check_not_used_up, check_unwrapped, registrations, synchronizes
from cs336_systems.parallel.timeline import Timeline
from cs336_systems.parallel.units import Unit, divide, find_places, shard_weights
from cs336_systems.parallel.wrapped_module import WrappedModule


class FullyShardedDataParallel(WrappedModule):
    """Shards the weight of every Linear and Embedding over the ranks of a process group.

    Outside the module's forward pass, `parameters()` and `state_dict()` return DTensors over the group: weights of
    Linear and Embedding are sharded by rows, all others are replicated, with averaged gradients. `requires_grad` may be
    set at any time between a backward pass and the next forward pass.

    All ranks must use the same layers in the same order and take part in the same backward passes; otherwise they hang.
    A replicated parameter may be used by only some ranks. Call the wrapper or the wrapped module, not a part of it. The
    module's class may list, in `forward_methods`, other methods that compute; call them on the wrapper. Hooks of
    `register_post_accumulate_grad_hook` run when `finish_gradient_synchronization` has set the gradient.

    The wrapper cannot be copied, pickled, cast or moved, and its parameters cannot be replaced; each attempt raises an
    error. `load_state_dict(assign=True)` copies instead of assigning. Save its `state_dict`, or a `TrainingState`.
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        together: Sequence[type[nn.Module]] = (),
        symmetric_memory: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ):
        """Shard a module that all ranks have built identically; rank 0's parameters and buffers are used.

        Args:
            module: the module to train. Compile its blocks before wrapping, for example with `compile_blocks` of
                cs336_systems.training.
            compute_dtype: dtype in which weights and gradients are sent and layers compute: their weights, biases and
                floating-point inputs are cast. Norms compute in their weights' dtype, as in autocast. Shards and their
                gradients keep the parameters' dtype. None: no cast.
            together: classes of modules, such as the Transformer's block. One call gathers the weights of all layers of
                such a module, and one call reduces their gradients: fewer calls, more memory. By default each layer is
                its own unit. A compiled module is always one unit.
            symmetric_memory: whether the GPUs' copy engines gather the weights, so that no all-gather takes SMs from
                the layers that it overlaps with. The ranks must be on one machine. Each keeps a copy of its rows in the
                compute dtype, which the others read. Weights must not change between a forward pass and its backward
                pass.
            process_group: the ranks that share the parameters; None: all.

        Raises:
            ValueError: the ranks' modules differ, no parameter requires a gradient, the compute_dtype is not
                floating-point or conflicts with a part that keeps its own dtype, an embedding has sparse gradients or
                renormalizes itself, parameters are on the meta device or share memory, the module itself was compiled
                in place or is sharded already, or gradients are consumed in the backward pass.
            RuntimeError: symmetric_memory is set, but the ranks cannot reach each other's memory.
        """
        super().__init__(module)
        check_unwrapped(module)
        check(module, compute_dtype)
        check_not_used_up(module.parameters(), type(self).__name__)
        self._compute_dtype = compute_dtype
        replicate(module, process_group)
        synchronizes(self, module.parameters())  # an older wrapper is known by parameters that become shards
        group = process_group or dist.group.WORLD
        assert group is not None
        self._group = group
        device = next(module.parameters()).device
        mesh = DeviceMesh.from_group(group, device.type)
        sharded = shard_weights(module, compute_dtype, mesh)
        self._weights = list(dict.fromkeys(sharded.values()))
        if symmetric_memory:
            expose(self._weights, device, group)
        modules, self._units = divide(module, tuple(together), sharded)
        self.units = tuple(modules)
        """The modules whose weights are gathered together, in the order in which the module has them."""
        self._calls_compiled_parts = any(part._compiled_call_impl is not None for part in modules)
        self._communication_stream = CommunicationStream(device)
        self._training, self._evaluation = Timeline(), Timeline()
        self._timeline = self._training
        self._reductions: deque[Transfer] = deque()
        self._in_backward = False
        shards = self.sharded_weights
        names = {parameter: name for name, parameter in module.named_parameters()}
        rest = {names[p]: places for p, places in find_places(module).items() if p not in shards}
        self._replicas = ReplicatedParameters(rest, mesh, device, Hook(self._replica_arrived))
        load_into({place: p for p, places in find_places(module).items() for place in places})
        self._register_hooks()
        self._follow_shards()
        scale_by_all_ranks()
        count_updates()
        self._known = list(module.parameters())
        self._versions: list[int] = []
        """The versions of the parameters after the last forward pass that a backward pass may follow."""
        self._registrations = registrations()
        synchronizes(self, self._known)

    def _register_hooks(self) -> None:
        module = self.module
        module.register_forward_pre_hook(ModuleHook(self._before_module))
        for unit, part in zip(self._units, self.units, strict=True):
            call_around(part, ModuleHook(self._before_forward, unit.index), ModuleHook(self._after_forward, unit.index))
            for position, weight in enumerate(unit.first):
                if weight.whole.requires_grad:
                    hook = Hook(self._gradient_arrived, unit.index, position)
                    weight.whole.register_post_accumulate_grad_hook(hook)
            unit.plan()
        module.register_forward_hook(ModuleHook(self._after_module), always_call=True)
        if self._compute_dtype is not None:
            for part in module.modules():
                if isinstance(part, (nn.LayerNorm, nn.GroupNorm)):
                    part.register_forward_pre_hook(cast_to_weight)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output.

        Raises:
            RuntimeError: the gradients of the last backward pass were not synchronized.
        """
        if self._calls_compiled_parts:  # which would not be called if the whole model were compiled
            return not_compiled(self._forward, *args, **kwargs)
        return self._forward(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1:  # in a backward pass, which recomputes a checkpointed part
            return self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._evaluate(*args, **kwargs)
        if self._arrived:
            raise RuntimeError(
                "finish_gradient_synchronization() was not called after the last backward pass; allowed: calling it, "
                "or the wrapper's zero_grad() to drop the gradients of that pass"
            )
        self._end_backward()  # It may have failed.
        self._free_all()
        self._follow_shards()
        self._begin_pass()
        return self.module(*args, **kwargs)

    def _begin_pass(self) -> None:
        self._timeline.begin_pass()
        for weight in self._weights:
            weight.is_exposed = False

    def _attribute(self, name: str) -> Any:
        """Return a public attribute of the wrapped module; methods in its `forward_methods` run like its forward."""
        value = super()._attribute(name)
        if name in getattr(self.module, "forward_methods", ()):
            return partial(self._call_method, value)
        return value

    def _call_method(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with as_forward(self.module, method):
            return self(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self._timeline = self._evaluation
        self._begin_pass()
        try:
            return self.module(*args, **kwargs)
        finally:
            self._timeline = self._training
            self._free_unused(self._weights)

    def finish_gradient_synchronization(self) -> None:
        """Wait until all gradients are averaged; on a GPU the current stream waits, not the host.

        All ranks call it, after a step's last backward pass and before gradients are clipped or used. If no rank has a
        gradient, it remains None.
        """
        for unit in self._units:
            if unit.arrived:  # but not for all of them
                self._reduce(unit)
        self._wait_for_reductions()
        self._end_backward()
        for weight in self._weights:
            weight.give_gradient()
        self._replicas.average_gradients()
        self._free_all()  # The optimizer is about to change them.
        self._arrived = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, including unsynchronized ones, so that a batch can be dropped. All ranks call it.

        An optimizer's `zero_grad` resets only gradients that `finish_gradient_synchronization` has set.
        """
        super().zero_grad(set_to_none)
        self._wait_for_reductions()
        self._end_backward()
        for unit in self._units:
            unit.arrived.clear()
        for weight in self._weights:
            weight.drop_gradient()
        self._replicas.drop_gradients()
        self._free_all()
        self._arrived = False

    def _wait_for_reductions(self) -> None:
        while self._reductions:
            self._reductions.popleft().wait()

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the DTensors, even after a failed backward pass."""
        if torch._C._current_graph_task_id() == -1:
            self._end_backward()
        return super().named_parameters(*args, **kwargs)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients so that the norm of all of them together is at most `max_norm`. All ranks call it.

        The result equals `torch.nn.utils.clip_grad_norm_`, with one message for all gradients instead of one per
        gradient.

        Args:
            max_norm: the largest norm allowed.
            norm_type: above 0, `inf` included.

        Returns:
            the norm before clipping, a scalar tensor on the gradients' device.

        Raises:
            ValueError: norm_type is not above 0, or no parameter has a gradient.
        """
        norm = gradient_norm(self.parameters(), norm_type)
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    @property
    def sharded_weights(self) -> dict[nn.Parameter, ShardedWeight]:
        """The sharded weight of each shard."""
        return {weight.shard: weight for weight in self._weights}

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Gather copies of all parameters, unsharded and in their own dtype, by name. All ranks call it."""
        whole = {shard: weight.gather_shards() for shard, weight in self.sharded_weights.items()}
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: whole[p] if p in whole else local_part(p).detach().clone() for name, p in named}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copies()

    def _follow_shards(self) -> None:
        changed = [weight.follow() for weight in self._weights]
        if any(changed):
            for unit in self._units:
                unit.plan()

    def _before_module(self, module: nn.Module, args: Any) -> None:
        if self._registrations != registrations() and not self._in_backward:
            self._check_registered()
        self._replicas.show()

    def _check_registered(self) -> None:
        """Raise if the module has a trainable parameter that it did not have when it was wrapped."""
        self._replicas.put_back()  # A pass may have failed.
        known = set(self._known)
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in known:
                raise RuntimeError(
                    f"{name} was added or replaced after wrapping; allowed: in-place changes, by load_state_dict or "
                    "under torch.no_grad()"
                )
        self._registrations = registrations()

    def _after_module(self, module: nn.Module, args: Any, output: Any) -> None:
        """Register DTensors in the module again, until its backward pass."""
        self._replicas.hide()
        if torch.is_grad_enabled() and not self._in_backward:
            self._versions = [parameter._version for parameter in self._known]
        for tensor in tensors_with_gradient(output):
            if not tensor.is_leaf:  # else it is an input, or a parameter, which would keep the hook
                tensor.register_hook(Hook(self._begin_backward_pass))

    def _begin_backward_pass(self, gradient: Tensor) -> None:
        """Register plain tensors for recomputation, as in the forward pass."""
        if not self._in_backward:
            if any(
                p._version != before and p.requires_grad for p, before in zip(self._known, self._versions, strict=True)
            ):
                raise RuntimeError(
                    "a parameter was changed between the forward pass and the backward pass, which both gather it; "
                    "allowed: changes after the backward pass"
                )
            self._in_backward = True
            self._replicas.show()
            torch.autograd.Variable._execution_engine.queue_callback(Hook(self._end_backward))

    def _end_backward(self) -> None:
        if self._in_backward:
            self._in_backward = False
            self._replicas.put_back()

    def _before_forward(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        unit, dtype = self._units[index], self._compute_dtype
        self._begin_use(unit, backward=False)
        unit.show_whole(dtype)
        if unit.has_ambiguous_gradients:
            tensors = tensors_with_gradient((args, kwargs))
            call_after_gradients(tensors, Hook(self._end_backward_use, index))
        if dtype is None:
            return args, kwargs
        return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs))

    def _after_forward(self, index: int, module: nn.Module, args: Any, output: Any) -> None:
        """Free a unit's weights, and gather them again before the backward pass."""
        unit = self._units[index]
        unit.show_shards()
        self._end_use(unit, backward=False)
        if not isinstance(module, nn.Embedding):  # whose backward pass reads only the token ids
            for tensor in tensors_with_gradient(output):
                tensor.register_hook(Hook(self._begin_backward, index))

    def _end_backward_use(self, index: int) -> None:
        self._end_use(self._units[index], backward=True)

    def _begin_use(self, unit: Unit, backward: bool) -> None:
        """Gather the weights of a unit, and start to gather the weights needed next."""
        for weight in unit.weights:
            weight.users.add((unit.index, backward))
        self._timeline.note(unit.index)
        unit.gather(self._communication_stream)
        for index in self._timeline.upcoming():
            self._units[index].gather(self._communication_stream)
        for weight in unit.weights:
            weight.wait_for_arrival()

    def _end_use(self, unit: Unit, backward: bool) -> None:
        for weight in unit.weights:
            weight.users.discard((unit.index, backward))
        self._free_unused(unit.weights)

    def _free_unused(self, weights: Iterable[ShardedWeight]) -> None:
        """Free the weights that no unit uses now or is about to use."""
        soon = {weight for index in self._timeline.upcoming() for weight in self._units[index].weights}
        for weight in weights:
            if weight.is_whole and not weight.users and weight not in soon:
                weight.free()

    def _free_all(self) -> None:
        for weight in self._weights:
            weight.users.clear()
            if weight.is_whole:
                weight.free()

    def _begin_backward(self, index: int, gradient: Tensor) -> None:
        """Handle the first gradient of a unit's outputs; a unit may have several outputs, and uses."""
        unit = self._units[index]
        if (index, True) not in unit.weights[0].users:
            self._begin_use(unit, backward=True)

    def _replica_arrived(self, parameter: Tensor) -> None:
        self._arrived = not self._accumulating

    def _gradient_arrived(self, index: int, position: int, parameter: Tensor) -> None:
        """Handle a complete gradient of a whole weight: its users' backward passes are also complete."""
        self._arrived = not self._accumulating
        unit = self._units[index]
        weight = unit.first[position]
        weight.users.clear()
        self._free_unused([weight])
        if weight not in unit.arrived:
            unit.arrived.append(weight)
        if len(unit.arrived) == len(unit.owed):
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        while len(self._reductions) >= REDUCTIONS:
            self._reductions.popleft().wait()
        weights, unit.arrived = unit.arrived, []
        gradients = [weight.take_gradient() for weight in weights]
        received: list[Tensor] = []

        def add_up() -> None:
            for weight, rows in zip(weights, received, strict=True):
                weight.add_reduced(rows)

        send = partial(reduce, gradients, received, self._group)
        self._reductions.append(self._communication_stream.start(send, then=add_up, reads=gradients))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def not_compiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function outside torch.compile; functions that it calls may be compiled separately."""
    return function(*args, **kwargs)


def expose(weights: Sequence[ShardedWeight], device: torch.device, group: dist.ProcessGroup) -> None:
    """Make copy engines gather weights from the symmetric memory of all ranks."""
    ends = list(itertools.accumulate((aligned(weight.exposed_bytes, ALIGNMENT) for weight in weights), initial=0))
    source = allocate(max(ends[-1], ALIGNMENT), device, group)
    for weight, start in zip(weights, ends, strict=False):
        weight.expose_in(source, start)


def refuse_copies() -> NoReturn:
    """Raise a RuntimeError that says why FSDP modules cannot be copied."""
    raise RuntimeError(
        "a FullyShardedDataParallel and its modules cannot be copied or pickled: the copy's hooks would gather the "
        "original's weights; allowed: state_dict()"
    )


class Hook:
    """A hook that calls a wrapper's method, does not keep the wrapper, as in data_parallel, and cannot be copied.

    It may outlive the wrapper, which holds the weights.
    """

    def __init__(self, method: Callable[..., Any], *arguments: Any):
        self._method = weakref.WeakMethod(method)
        self._arguments = arguments

    def __call__(self, *args: Any) -> Any:
        """Call the method with the hook's arguments and its caller's; a RuntimeError if the wrapper is gone."""
        method = self._method()
        if method is None:
            raise RuntimeError(
                "the FullyShardedDataParallel that gathers the weights of this module was deleted: keep a reference to "
                "it"
            )
        return method(*self._arguments, *args)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copies()


class ModuleHook(Hook):
    """The same for modules, which may be compiled: it runs outside the compiled code."""

    __call__ = torch.compiler.disable(Hook.__call__)


def cast_to_weight(norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast a norm's input to its weight's dtype, as autocast does: kernels of GPUs do not mix dtypes."""
    weight = norm.weight
    if not isinstance(weight, Tensor):
        return inputs
    return tuple(x.to(weight.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


def call_around(module: nn.Module, before: Hook, after: Hook) -> None:
    """Make a module call `before` with its arguments and `after` with its output, outside any compiled code."""
    compiled = module._compiled_call_impl
    if compiled is None:
        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, always_call=True)
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        output = None
        try:
            args, kwargs = before(module, args, kwargs)
            output = compiled(*args, **kwargs)
        finally:
            after(module, args, output)
        return output

    module._compiled_call_impl = call


def call_after_gradients(tensors: Sequence[Tensor], action: Callable[[], None]) -> None:
    """Call `action` once the backward pass has computed the gradients of all tensors."""
    # torch.autograd.graph.register_multi_grad_hook would keep the graph alive, in a cycle.
    missing = len(tensors)

    def count(gradient: Tensor) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            action()

    for tensor in tensors:
        tensor.register_hook(count)
