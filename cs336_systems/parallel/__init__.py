"""Data-parallel wrappers and sharded optimizers; names load on first use, since closed forms need no PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs336_systems.parallel.data_parallel import BucketedDataParallel as BucketedDataParallel
    from cs336_systems.parallel.data_parallel import FlatDataParallel as FlatDataParallel
    from cs336_systems.parallel.data_parallel import NaiveDataParallel as NaiveDataParallel
    from cs336_systems.parallel.data_parallel import OverlappedDataParallel as OverlappedDataParallel
    from cs336_systems.parallel.fsdp import FullyShardedDataParallel as FullyShardedDataParallel
    from cs336_systems.parallel.sharded_gradients import ShardedGradientsDataParallel as ShardedGradientsDataParallel
    from cs336_systems.parallel.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from cs336_systems.parallel.symmetric_memory_data_parallel import (
        SymmetricMemoryDataParallel as SymmetricMemoryDataParallel,
    )
    from cs336_systems.parallel.symmetric_memory_optimizer import (
        SymmetricMemoryShardedOptimizer as SymmetricMemoryShardedOptimizer,
    )
    from cs336_systems.parallel.training_state import TrainingState as TrainingState
    from cs336_systems.parallel.training_state import latest_checkpoint as latest_checkpoint
    from cs336_systems.parallel.update_in_backward import UpdateInBackward as UpdateInBackward
    from cs336_systems.parallel.update_in_backward import units_of as units_of

MODULE_OF = {
    "BucketedDataParallel": "data_parallel",
    "FlatDataParallel": "data_parallel",
    "FullyShardedDataParallel": "fsdp",
    "NaiveDataParallel": "data_parallel",
    "OverlappedDataParallel": "data_parallel",
    "SymmetricMemoryDataParallel": "symmetric_memory_data_parallel",
    "SymmetricMemoryShardedOptimizer": "symmetric_memory_optimizer",
    "ShardedGradientsDataParallel": "sharded_gradients",
    "ShardedOptimizer": "sharded_optimizer",
    "TrainingState": "training_state",
    "UpdateInBackward": "update_in_backward",
    "latest_checkpoint": "training_state",
    "units_of": "update_in_backward",
}
__all__ = list(MODULE_OF)


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it (PEP 562)."""
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULE_OF[name]}"), name)
