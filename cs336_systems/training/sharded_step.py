"""A training step of bf16 weights whose update, sharded over ranks, runs during the backward pass.

with torch.device(device):
    model = TransformerLM(..., attention=flash_attention)
step = ShardedStep(model, recomputed=12, lr=1e-4)
loss = step.run(inputs, targets)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems.model import TransformerLM
from cs336_systems.parallel.update_in_backward import UpdateInBackward
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.checkpointing import checkpoint_blocks
from cs336_systems.training.fused_model import FusedSwiGLU, fuse
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy


class ShardedStep:
    """Fused passes, a loss without logits, and exact AdamW of fp32 masters, of which each rank keeps its share."""

    def __init__(
        self,
        model: TransformerLM,
        *,
        recomputed: int = 0,
        make_update: Callable[..., UpdateInBackward] = UpdateInBackward,
        **hyperparameters: Any,
    ):
        """Fuse a model, convert it to bf16, and make its optimizer.

        Args:
            model: the model to train, in place.
            recomputed: of how many of its first blocks only the input and attention's result are kept.
            make_update: `UpdateInBackward`, or a function like it.
            hyperparameters: arguments of MasterAdamW.
        """
        self.model = fuse(model, keep_hidden=False).to(torch.bfloat16)
        for block in list(self.model.blocks)[:recomputed]:
            # A block that is computed again ends with its hidden layer; without it, with the matmul that follows.
            assert isinstance(block.feed_forward, FusedSwiGLU)
            block.feed_forward.keep_hidden = True
        checkpoint_blocks(self.model, recomputed)
        self.update = make_update(units_of(self.model), MasterAdamW, **hyperparameters)
        for optimizer in self.update.optimizers:
            assert isinstance(optimizer, MasterAdamW)
            optimizer.prepare()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of this rank's sequences, [batch, sequence] integers each."""
        return linear_cross_entropy(self.model.hidden(inputs), self.model.lm_head.weight, targets)

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Make a step, and return this rank's loss, an fp32 scalar."""
        loss = self.loss(inputs, targets)
        loss.backward()
        self.update.finish()
        return loss.detach()


def units_of(model: TransformerLM) -> list[list[nn.Parameter]]:
    """The parameters of embedding, blocks and head, which are updated together."""
    head = [*model.final_norm.parameters(), *model.lm_head.parameters()]
    return [[*model.token_embedding.parameters()], *([*block.parameters()] for block in model.blocks), head]
