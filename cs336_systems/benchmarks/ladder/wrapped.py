"""One model trained by several processes with this project's wrappers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cs336_systems.experiments.training_ladder import Rung
from cs336_systems.model import TransformerLM
from cs336_systems.parallel.data_parallel import BucketedDataParallel
from cs336_systems.parallel.fsdp import FullyShardedDataParallel
from cs336_systems.parallel.update_in_backward import UpdateInBackward, units_of
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.compiled_blocks import compile_blocks

BUCKET_MB = 100
"""Gradients that the data-parallel wrapper sends at once, in 10^6 bytes."""

ComputeLoss = Callable[[Tensor, Tensor], Tensor]


def wrap(
    rung: Rung, model: TransformerLM, compute_loss: ComputeLoss, lr: float
) -> tuple[ComputeLoss, Callable[[], object]]:
    """Wrap a model on every rank.

    Returns: a function that computes the loss, and one that ends a step after the backward pass, with all weights
    updated.
    """
    return WRAP[rung.wrapper](model, compute_loss, lr)


def data_parallel(
    model: TransformerLM, compute_loss: ComputeLoss, lr: float
) -> tuple[ComputeLoss, Callable[[], object]]:
    """Gradients are averaged during the backward pass, and each rank updates all weights after it."""
    wrapper = BucketedDataParallel(model, BUCKET_MB)
    optimizer = MasterAdamW(model.parameters(), lr=lr)

    def finish() -> None:
        wrapper.finish_gradient_synchronization()
        optimizer.step()

    return compute_loss, finish


def sharded_optimizer(
    model: TransformerLM, compute_loss: ComputeLoss, lr: float
) -> tuple[ComputeLoss, Callable[[], object]]:
    """Gradients are averaged, and each rank updates its share of the weights, during the backward pass."""
    update = UpdateInBackward(units_of(model), MasterAdamW, lr=lr)
    return compute_loss, update.finish


def fsdp(model: TransformerLM, compute_loss: ComputeLoss, lr: float) -> tuple[ComputeLoss, Callable[[], object]]:
    """Each rank keeps its share of all weights in fp32; a block's weights are gathered in bf16 while in use."""
    compile_blocks(model)
    wrapper = FullyShardedDataParallel(model, torch.bfloat16)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=lr, fused=True)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        logits = wrapper(inputs)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def finish() -> None:
        wrapper.finish_gradient_synchronization()
        optimizer.step()

    return loss, finish


WRAP = {"data_parallel": data_parallel, "sharded_optimizer": sharded_optimizer, "fsdp": fsdp}
"""Functions that wrap a model, by a rung's wrapper."""
