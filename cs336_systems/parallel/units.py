"""Units of a sharded model: parts whose weights are gathered together."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from cs336_systems.parallel.communication_stream import CommunicationStream
from cs336_systems.parallel.distributed_parameters import Place, check_in_place
from cs336_systems.parallel.sharded_weight import ShardedWeight, gather

LAYER_NAMES = {"Linear", "Embedding"}


class Unit:
    """A layer, or a module of several layers, whose weights are gathered together while it runs."""

    def __init__(self, index: int, weights: dict[Place, ShardedWeight], biases: list[Place]):
        """Make the unit `index` of the weights of its layers, and of their other floating-point parameters."""
        self.index = index
        self.weights = list(dict.fromkeys(weights.values()))
        self.first = [weight for weight in self.weights if not weight.units]
        """Weights that no earlier unit uses."""
        self.owed: list[ShardedWeight] = []
        """Weights in `first` that are not frozen: their gradients are reduced together, once all have arrived."""
        for weight in self.weights:
            weight.units += 1
        self.arrived: list[ShardedWeight] = []
        """Weights in `owed` whose gradients have arrived."""
        self._places = weights
        self._biases = biases
        self._hidden: dict[Place, Tensor | None] = {}

    def plan(self) -> None:
        """Update which weights are frozen."""
        self.owed = [weight for weight in self.first if weight.whole.requires_grad]

    @property
    def has_ambiguous_gradients(self) -> bool:
        """Whether this unit's backward pass may still need a weight after its gradient has arrived.

        A frozen weight has no gradient, and a tied one has to wait for other units.
        """
        return any(not weight.whole.requires_grad or weight.units > 1 for weight in self.weights)

    def gather(self, communication_stream: CommunicationStream) -> None:
        """Start to gather the weights, except those that are whole or in flight."""
        missing = [weight for weight in self.weights if not weight.is_whole]
        if missing:
            transfer = communication_stream.start(partial(gather, missing))
            for weight in missing:
                weight.arrival = transfer

    def show_whole(self, compute_dtype: torch.dtype | None) -> None:
        """Register the full weights in the unit's layers, and biases in the same dtype."""
        for place, weight in self._places.items():
            owner, name = place
            check_in_place(weight.name, owner._parameters[name], weight.shard)
            self._show(place, weight.whole)
        if compute_dtype is not None:
            for place in self._biases:
                owner, name = place
                self._show(place, getattr(owner, name).to(compute_dtype))

    def _show(self, place: Place, tensor: Tensor) -> None:
        owner, name = place
        self._hidden[place] = owner._parameters[name]
        owner._parameters[name] = tensor  # type: ignore[assignment]  # setattr would refuse what is no Parameter

    def show_shards(self) -> None:
        """Register the shards in the unit's layers again, as outside forward passes."""
        while self._hidden:
            (owner, name), parameter = self._hidden.popitem()
            owner._parameters[name] = parameter  # type: ignore[assignment]


def shard_weights(module: nn.Module, compute_dtype: torch.dtype | None, mesh: DeviceMesh) -> dict[Place, ShardedWeight]:
    """Replace weights by shards; tied weights share one shard."""
    weights = {}
    names = {parameter: name for name, parameter in module.named_parameters()}
    places = deque((names.pop(parameter), parameter, owners) for parameter, owners in find_places(module).items())
    while places:  # Releases each weight before the next is copied.
        label, parameter, owners = places.popleft()
        if is_sharded(parameter, owners):
            weight = ShardedWeight(label, parameter, compute_dtype, mesh)
            for owner, name in owners:
                setattr(owner, name, weight.shard)
                weights[owner, name] = weight
    return weights


def divide(
    module: nn.Module, together: tuple[type[nn.Module], ...], weights: dict[Place, ShardedWeight]
) -> tuple[list[nn.Module], list[Unit]]:
    """Divide a module into units, and return the modules that are units, and the units.

    The layers of a module of one of the classes `together` make one unit.
    """
    parts: list[nn.Module] = []
    units: list[Unit] = []
    for part in dict.fromkeys(find_units(module, together)):
        places = [(layer, name) for layer in part.modules() if is_layer(layer) for name in layer._parameters]
        sharded = {place: weights[place] for place in places if place in weights}
        if sharded:
            parts.append(part)
            units.append(Unit(len(units), sharded, [place for place in places if is_bias(place, weights)]))
    return parts, units


def find_units(module: nn.Module, together: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    """The outermost modules that are a layer, compiled, or of one of the classes `together`."""
    if is_layer(module) or is_compiled(module) or isinstance(module, together):
        yield module
        return
    for child in module.children():
        yield from find_units(child, together)


def find_places(module: nn.Module) -> dict[nn.Parameter, list[Place]]:
    """Find the places where each parameter is registered."""
    places = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                places[parameter].append((owner, name))
    return places


def is_sharded(parameter: nn.Parameter, places: Sequence[Place]) -> bool:
    """Whether a parameter is only used as the weight of layers."""
    return parameter.dim() > 0 and all(name == "weight" and is_layer(owner) for owner, name in places)


def is_bias(place: Place, weights: dict[Place, ShardedWeight]) -> bool:
    """Whether a layer's parameter is used in its computation but is not a sharded weight."""
    owner, name = place
    parameter = owner._parameters[name]
    return place not in weights and parameter is not None and parameter.is_floating_point()


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a Linear or an Embedding: PyTorch's, a subclass, or another class of one of these names."""
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return False  # nn.MultiheadAttention reads the weight of its own without calling it
    return type(module).__name__ in LAYER_NAMES or isinstance(module, nn.Linear | nn.Embedding)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was made by torch.compile, or compiled in place: no hook can run between its layers."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
