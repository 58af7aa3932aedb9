"""What a training run needs to be resumed, for torch.distributed.checkpoint.

    state = {"training": TrainingState(model, optimizer)}
    dcp.save(state, checkpoint_id=folder / f"{step:08}")
    dcp.load(state, checkpoint_id=latest_checkpoint(folder))

Every rank writes its rows; as many ranks read them as there are then, or one process without a group (`no_dist=True`).
"""

from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.sharded_state import as_dtensor
from cs336_systems.parallel.sharded_weight import ShardedWeight


class TrainingState(Stateful):
    """The state of a model and its optimizer by the parameters' names, whether sharded or not.

    A checkpoint of either kind loads into the other, over any number of ranks. Like PyTorch's functions, which it uses,
    it wants each parameter of the optimizer to have had a gradient before the checkpoint is saved.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer):
        """Of a FullyShardedDataParallel, or of a model that one process holds, and an optimizer of its parameters."""
        self._optimizer = optimizer
        self._module = model
        weights: dict[nn.Parameter, ShardedWeight] = {}
        if isinstance(model, FullyShardedDataParallel):
            self._module, weights = model.module, model.sharded_weights
        self._weights = {name: weights[p] for name, p in self._module.named_parameters() if p in weights}

    def state_dict(self) -> dict[str, Any]:
        """Tensors share the memory of the model and its optimizer, whose state is made if it has not made a step."""
        optimizer: dict[str, Any] = get_optimizer_state_dict(self._module, self._optimizer)
        for name, weight in self._weights.items():
            if name in optimizer["state"]:
                # Another dictionary: this one is the optimizer's own.
                optimizer["state"][name] = {
                    key: as_dtensor(value, weight) if value.shape == weight.shard.shape else value
                    for key, value in optimizer["state"][name].items()
                }
        return {"model": self._module.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` has given."""
        self._module.load_state_dict(state["model"])
        states: dict[str, Any] = {
            name: {key: value.to_local() if isinstance(value, DTensor) else value for key, value in values.items()}
            for name, values in state["optimizer"]["state"].items()
        }
        set_optimizer_state_dict(self._module, self._optimizer, {**state["optimizer"], "state": states})


def latest_checkpoint(folder: Path) -> Path | None:
    """The last by name of the checkpoints in a folder, which has a folder for each; None if there is none.

    Those that were never finished do not count: the file `.metadata` is written last, and appears whole.
    """
    return max((file.parent for file in folder.glob("*/.metadata")), default=None)
