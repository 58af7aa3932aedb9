"""PyTorch's own wrappers, as `snakemake verify` calls anybody's."""

from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def ddp(module):
    """A model whose gradients DistributedDataParallel averages, whichever parameters a step uses."""
    return DistributedDataParallel(module, find_unused_parameters=True)


def zero(params, optimizer_cls, **kwargs):
    """An optimizer whose state ZeroRedundancyOptimizer shares out."""
    return ZeroRedundancyOptimizer(params, optimizer_class=optimizer_cls, **kwargs)


def fsdp(module, compute_dtype=None):
    """A model whose layers fully_shard shards."""
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype)
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear | nn.Embedding):
            fully_shard(layer, mp_policy=policy)
    return fully_shard(module, mp_policy=policy)
