"""A training step of bf16 weights whose update, sharded over ranks, runs during the backward pass.

with torch.device(device):
    model = TransformerLM(..., attention=flash_attention)
step = ShardedStep(model, recomputed=12, lr=1e-4)
loss = step.run(inputs, targets)
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cs336_systems.model import TransformerLM
from cs336_systems.parallel.update_in_backward import UpdateInBackward
from cs336_systems.training.adamw import MasterAdamW
from cs336_systems.training.checkpointing import KEPT, kept_attention
from cs336_systems.training.fused_model import FusedSwiGLU, FusedTransformerBlock, fuse, run_fused_blocks, run_segment
from cs336_systems.training.linear_cross_entropy import linear_cross_entropy
from cs336_systems.training.rms_norm import add_rms_norm

CHECKPOINT: dict[str, Any] = {
    "use_reentrant": False,
    "preserve_rng_state": False,  # blocks draw no random numbers
    "context_fn": partial(create_selective_checkpoint_contexts, KEPT),
}
"""Options of a checkpoint that keeps attention's result."""


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
        self.model = fuse(model).to(torch.bfloat16)
        self.recomputed = recomputed
        for number, block in enumerate(self.blocks):
            # A block that is computed again ends with its hidden layer; without it, with the matmul that follows.
            assert isinstance(block.feed_forward, FusedSwiGLU)
            block.feed_forward.keep_hidden = number < recomputed
            if number < recomputed:
                block.attention.attention = kept_attention
        self.update = make_update(units_of(self.model), MasterAdamW, **hyperparameters)
        for optimizer in self.update.optimizers:
            assert isinstance(optimizer, MasterAdamW)
            optimizer.prepare()

    @property
    def blocks(self) -> list[FusedTransformerBlock]:
        """The model's blocks."""
        return [block for block in self.model.blocks if isinstance(block, FusedTransformerBlock)]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of this rank's sequences, [batch, sequence] integers each."""
        x: Tensor = self.model.token_embedding(inputs)
        for block in self.blocks[: self.recomputed]:
            # As one tensor: a checkpoint would keep both summands of what enters the next block.
            x = checkpoint(run_segment, x, [block], **CHECKPOINT)
        total, delta = run_fused_blocks(x, self.blocks[self.recomputed :])
        norm = self.model.final_norm
        return linear_cross_entropy(
            add_rms_norm(total, delta, norm.weight, norm.eps)[1], self.model.lm_head.weight, targets
        )

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
