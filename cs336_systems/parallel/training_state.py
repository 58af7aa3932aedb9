"""Checkpoints of a training run, for torch.distributed.checkpoint.

    state = {"training": TrainingState(model, optimizer)}
    dcp.save(state, checkpoint_id=folder / f"{step:08}")
    dcp.load(state, checkpoint_id=latest_checkpoint(folder))

Every rank writes its rows. Any number of ranks can read them, or one process without a group (`no_dist=True`).

Load only checkpoints you trust: `dcp.load` unpickles, and a pickle can run any code.
"""

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.update_in_backward import UpdateInBackward


class TrainingState(Stateful):
    """The state of a model and its optimizer by the parameters' names, whether sharded or not.

    A checkpoint of either kind loads into the other, on any number of ranks. An incomplete checkpoint, or one of
    another model, leaves model and optimizer unchanged. Like PyTorch's functions, which it uses, it requires each
    trainable parameter of the optimizer to have had a gradient before the checkpoint is saved: `state_dict` raises a
    ValueError that names one that has not.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | UpdateInBackward):
        """Wrap a FullyShardedDataParallel, or a model trained by a single process, and an optimizer of its parameters.

        Or wrap a model and an UpdateInBackward of its parameters: then each rank holds the full state in host memory
        while a checkpoint is saved or loaded.

        Raises:
            TypeError: the optimizer is neither a PyTorch optimizer nor an UpdateInBackward.
            ValueError: an UpdateInBackward has a parameter that is not the model's.
        """
        if not isinstance(optimizer, Optimizer | UpdateInBackward):
            name = type(optimizer).__name__
            raise TypeError(
                f"the optimizer is of class {name}; allowed: a torch.optim.Optimizer, or an UpdateInBackward"
            )
        self._module = model.module if isinstance(model, FullyShardedDataParallel) else model
        self._optimizer = optimizer
        self._updated = _names_in(optimizer, model) if isinstance(optimizer, UpdateInBackward) else []

    def state_dict(self) -> dict[str, Any]:
        """Copy the state into the host's memory; loading fills these copies before it touches the model.

        An optimizer that has not taken a step gets its initial state.
        """
        state = {"model": self._module.state_dict(), "optimizer": self._optimizer_state()}
        copies: dict[str, Any] = tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
        return {**copies, "shapes": self._shapes()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises:
            ValueError: the state is another model's.
        """
        for ours, theirs in zip_longest(self._shapes(), state["shapes"], fillvalue="nothing more"):
            if ours != theirs:
                raise ValueError(
                    f"the checkpoint is another model's: it has {theirs} where this one has {ours}; allowed: the same "
                    "parameters and buffers"
                )
        self._module.load_state_dict(state["model"])
        if isinstance(self._optimizer, UpdateInBackward):
            numbers = {name: number for number, name in enumerate(self._updated)}
            self._optimizer.load_state_dict(_renamed(state["optimizer"], numbers))
        else:
            set_optimizer_state_dict(self._module, self._optimizer, state["optimizer"])

    def _optimizer_state(self) -> dict[str, Any]:
        if not isinstance(self._optimizer, UpdateInBackward):
            state: dict[str, Any] = get_optimizer_state_dict(self._module, self._optimizer)
            self._check_complete(state)
            return state
        for unit, optimizer in zip(self._optimizer.units, self._optimizer.optimizers, strict=True):
            get_optimizer_state_dict(nn.ParameterList([unit.share]), optimizer)  # which initializes it
        return _renamed(self._optimizer.state_dict(), dict(enumerate(self._updated)))

    def _check_complete(self, state: Mapping[str, Any]) -> None:
        """Raise a ValueError for a parameter without a state, which no new optimizer could load."""
        trained = {name for name, parameter in self._module.named_parameters() if parameter.requires_grad}
        for group in state["param_groups"]:
            without = [name for name in group["params"] if name in trained and not state["state"].get(name)]
            if without and len(without) < len(trained.intersection(group["params"])):
                raise ValueError(
                    f"{without[0]} has no optimizer state, since it has had no gradient; allowed: parameters that have "
                    "had one, or are frozen"
                )

    def _shapes(self) -> tuple[str, ...]:
        return tuple(f"{name}: {list(value.shape)}" for name, value in self._module.state_dict().items())


def _names_in(update: UpdateInBackward, model: nn.Module) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [parameter for unit in update.units for parameter in unit.parameters]
    if foreign := [parameter for parameter in parameters if parameter not in names]:
        shape = list(foreign[0].shape)
        raise ValueError(
            f"the optimizer has a parameter of shape {shape} that is not the model's; allowed: the model's parameters"
        )
    return [names[parameter] for parameter in parameters]


def _renamed(state: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    """An optimizer's state with other names of its parameters."""
    groups = [{**group, "params": [names[name] for name in group["params"]]} for group in state["param_groups"]]
    return {"state": {names[name]: value for name, value in state["state"].items()}, "param_groups": groups}


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the checkpoint whose name sorts last in a folder; None if there is none.

    Unfinished checkpoints do not count: the file `.metadata` is written last, and atomically.
    """
    return max((file.parent for file in Path(folder).glob("*/.metadata")), default=None)
