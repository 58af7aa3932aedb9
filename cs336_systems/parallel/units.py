"""The parts of a model whose weights are gathered together."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from cs336_systems.parallel.distributed_parameters import Place, check_in_place
from cs336_systems.parallel.lane import Lane
from cs336_systems.parallel.sharded_weight import ShardedWeight, gather

LAYER_NAMES = {"Linear", "Embedding"}


class Unit:
    """A module that finds its weights whole while it runs: a layer, or a module of several layers."""

    def __init__(self, index: int, weights: dict[Place, ShardedWeight], biases: list[Place]):
        """A unit.

        Args:
            index: its place among the units.
            weights: those of its layers.
            biases: other floating-point parameters of its layers.
        """
        self.index = index
        self.weights = list(dict.fromkeys(weights.values()))
        self.first = [weight for weight in self.weights if not weight.units]
        """Those that no earlier unit uses."""
        self.owed: list[ShardedWeight] = []
        """Those of the first whose gradients are reduced together, once all have arrived: not the frozen ones."""
        for weight in self.weights:
            weight.units += 1
        self.arrived: list[ShardedWeight] = []
        """Those of the owed whose gradients have arrived."""
        self._places = weights
        self._biases = biases
        self._hidden: dict[Place, Tensor | None] = {}

    def plan(self) -> None:
        """Note which weights are frozen now."""
        self.owed = [weight for weight in self.first if weight.whole.requires_grad]

    @property
    def has_ambiguous_gradients(self) -> bool:
        """Whether the arrival of a gradient does not tell that the backward pass of this unit is done with a weight.

        A frozen weight has none, and a tied one has to wait for other units.
        """
        return any(not weight.whole.requires_grad or weight.units > 1 for weight in self.weights)

    def gather(self, lane: Lane) -> None:
        """Start to gather its weights, but for those that are whole or on their way."""
        missing = [weight for weight in self.weights if not weight.is_whole]
        if missing:
            transfer = lane.start(partial(gather, missing))
            for weight in missing:
                weight.arrival = transfer

    def show_whole(self, compute_dtype: torch.dtype | None) -> None:
        """Let its layers see the whole weights, and their biases in the same dtype.

        Raises:
            RuntimeError: a weight was replaced.
        """
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
        """Let its layers have what they have outside their forward passes."""
        while self._hidden:
            (owner, name), parameter = self._hidden.popitem()
            owner._parameters[name] = parameter  # type: ignore[assignment]


def shard_weights(module: nn.Module, compute_dtype: torch.dtype | None, mesh: DeviceMesh) -> dict[Place, ShardedWeight]:
    """Put shards in the places of all weights that are to be sharded; the same shard where a weight is tied."""
    weights = {}
    names = {parameter: name for name, parameter in module.named_parameters()}
    places = deque((names.pop(parameter), parameter, owners) for parameter, owners in find_places(module).items())
    while places:  # Lets go of each weight before the next is copied.
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
    """The modules that are units, and what is to be known of each of them.

    Args:
        module: what is divided.
        together: classes of modules whose layers make one unit.
        weights: the sharded ones.
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
    """Where each parameter is."""
    places = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                places[parameter].append((owner, name))
    return places


def is_sharded(parameter: nn.Parameter, places: Sequence[Place]) -> bool:
    """Whether a parameter is the weight of layers, and nothing else."""
    return parameter.dim() > 0 and all(name == "weight" and is_layer(owner) for owner, name in places)


def is_bias(place: Place, weights: dict[Place, ShardedWeight]) -> bool:
    """Whether a parameter of a layer is none of the sharded weights, and computes with them."""
    owner, name = place
    parameter = owner._parameters[name]
    return place not in weights and parameter is not None and parameter.is_floating_point()


def is_layer(module: nn.Module) -> bool:
    """Whether it is a linear map or an embedding: PyTorch's, derived from these, or another class of such a name."""
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return False  # nn.MultiheadAttention reads the weight of its own without calling it
    return type(module).__name__ in LAYER_NAMES or isinstance(module, nn.Linear | nn.Embedding)


def is_compiled(module: nn.Module) -> bool:
    """Whether it is what torch.compile has made of a module: nothing can be done between its layers."""
    return hasattr(module, "_orig_mod")
