"""The ways to train on several ranks that differ in what each rank keeps: each takes a model for good."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW, Optimizer

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.fsdp_memory import peak_bytes
from cs336_systems.accounting.transformer import adamw_bytes, parameters
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.benchmarks.contest.contenders import bucketed
from cs336_systems.experiments.data_parallel import FLOOR
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.measure.memory import Unavailable
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.peer_memory_data_parallel import PeerMemoryDataParallel
from cs336_systems.parallel.peer_memory_optimizer import PeerMemoryShardedOptimizer
from cs336_systems.parallel.units import find_units
from cs336_systems.sizes import parse_size

SLACK = 1.05
"""For libraries' workspaces, and what the allocator cannot use."""
PEERS_COPIES = 2
"""How often gradients are in the memory that peers reach, besides the gradients themselves, at most."""
COMPUTE_DTYPE = {"fp32": None, "bf16": torch.bfloat16}

Make = Callable[..., Optimizer]
"""From parameters and hyperparameters."""


@dataclass(frozen=True, kw_only=True)
class ShardedContender:
    """A way to train on several ranks."""

    wrapper: str
    """Its name in the experiment's rows."""
    wrap: Callable[[nn.Module], nn.Module]
    """Takes a model. It may raise `Unavailable`."""
    needed: int
    """Bytes of memory that it takes on each rank, about, at the most."""
    foreign: bool = False
    """Whether it is a library's."""
    autocasts: bool = True
    """Whether bf16 is autocast's, or that of the gathered weights."""
    optimizer: Make = AdamW
    units: Callable[[nn.Module], list[nn.Module]] = lambda wrapped: []
    """What of the wrapped model is gathered by itself."""

    @property
    def details(self) -> Mapping[str, str]:
        """What tells its rows apart."""
        return {"wrapper": self.wrapper}


def sharded_contenders(cell: FullyShardedTraining, device: torch.device) -> Iterator[ShardedContender]:
    """All that take part, the floor first."""
    shape = parse_size(cell.size)
    block = BlockActivations(
        shape=shape,
        batch_size=cell.batch_size,
        context=cell.context,
        precision=cell.precision,
        attention="plain",
        on_gpu=device.type == "cuda",
    )
    step = StepMemory(block=block, vocab_size=cell.vocab_size, segment=0)
    whole = step.peak
    weights = FP32_BYTES * parameters(shape, cell.vocab_size)
    in_peers = PEERS_COPIES * weights
    spared = adamw_bytes(shape, cell.vocab_size) * (cell.processes - 1) // cell.processes
    layers, blocks = (
        FullySharded(
            shape=shape, vocab_size=cell.vocab_size, ranks=cell.processes, precision=cell.precision, by_block=by_block
        )
        for by_block in (False, True)
    )
    # Each rank makes the whole model before it is sharded.
    by_layer, by_block = (max(peak_bytes(units, step), weights + units.weights) for units in (layers, blocks))
    dtype = COMPUTE_DTYPE[cell.precision]
    peers = bucketed("peer_memory", PeerMemoryDataParallel).wrap
    sharded = partial(ShardedContender, autocasts=False)

    yield ShardedContender(wrapper=FLOOR, wrap=lambda model: model, needed=whole)
    yield ShardedContender(wrapper="peer_memory", wrap=peers, needed=whole + in_peers)
    yield ShardedContender(
        wrapper="sharded_optimizer",
        wrap=peers,
        optimizer=partial(PeerMemoryShardedOptimizer, optimizer_cls=AdamW),
        needed=whole + in_peers - spared,
    )
    yield sharded(
        wrapper="fsdp",
        wrap=partial(FullyShardedDataParallel, compute_dtype=dtype),
        units=lambda wrapped: list(find_units(wrapped, ())),
        needed=by_layer,
    )
    yield sharded(
        wrapper="fsdp_blocks",
        wrap=lambda model: FullyShardedDataParallel(model, dtype, together=(type(blocks_of(model)[0]),)),
        units=lambda wrapped: list(find_units(wrapped, (type(blocks_of(wrapped.get_submodule("module"))[0]),))),
        needed=by_block,
    )
    yield sharded(
        wrapper="fully_shard",
        wrap=partial(shard_blocks, dtype=dtype, device=device),
        foreign=True,
        units=lambda wrapped: [wrapped, *blocks_of(wrapped)],
        needed=by_block,
    )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """A model's blocks.

    Raises:
        Unavailable: it has none.
    """
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise Unavailable(f"{type(model).__name__} has no `blocks`, which could be sharded one by one")
    return list(blocks)


def shard_blocks(model: nn.Module, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
    """PyTorch's, block by block; what is outside of the blocks is a unit too, which it keeps for the backward pass."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model
