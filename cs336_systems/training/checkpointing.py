"""Activation checkpointing that keeps attention's output, so that attention is not computed again.

    checkpoint_blocks(model, blocks=12)     # before the blocks are compiled

Of a block's recomputation, attention is the part that grows with the square of the sequence, and its output and
log-sum-exp (L) are what its backward pass needs: (2 d_model + 4 heads) bytes per token in bf16, as much again as the
block's input. The rest of the block is matmuls and elementwise operations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cs336_systems.attention import flash_attention
from cs336_systems.training.fused_model import FusedTransformerBlock

KEPT = [torch.ops.cs336_systems.attention_forward.default]
"""Operators whose results are kept."""


def checkpoint_blocks(model: nn.Module, blocks: int | None = None, *, keep_attention: bool = True) -> None:
    """Make blocks of a model keep only their input and attention's output and L for the backward pass, in place.

    The first blocks are chosen: those that keep everything are the last, and free it first. Results and gradients are
    the same, bit for bit where the kernels are deterministic. Call it after `fuse`, and before the blocks are
    compiled: a block is then compiled together with its recomputation. Parameters and their names stay the same.

    Args:
        model: has its blocks in a ModuleList `blocks`, and in each a module whose attribute `attention` is
            `flash_attention`, as TransformerLM and FusedTransformerLM do.
        blocks: how many; None: all.
        keep_attention: False keeps only the input: the least memory, and the most time.

    Raises:
        ValueError: there are not so many blocks, a block is checkpointed already, or keep_attention is asked for and a
            block does not call flash_attention.
    """
    layers = list(getattr(model, "blocks", []))
    count = len(layers) if blocks is None else blocks
    if not 0 <= count <= len(layers):
        raise ValueError(f"blocks is {count}; allowed: 0 to {len(layers)}, the model's")
    for number, block in enumerate(layers[:count]):
        if isinstance(block.forward, _Checkpointed):
            raise ValueError(f"block {number} is checkpointed already")
        attentions = [m for m in block.modules() if getattr(m, "attention", None) in (flash_attention, kept_attention)]
        if keep_attention and not attentions:
            raise ValueError(
                f"block {number} does not call flash_attention; allowed: such blocks, or no keep_attention"
            )
        for module in attentions if keep_attention else ():
            module.attention = kept_attention
        if isinstance(block, FusedTransformerBlock):
            block.returns_sum = True
        block.forward = _Checkpointed(block.forward, keep_attention)


def kept_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """flash_attention as an operator, whose results a checkpoint can keep.

    Args:
        q: see `flash_attention`, as for all arguments.
        k: keys.
        v: values.
        is_causal: whether a query sees only the keys up to its own position.
        options: others of `flash_attention`, except return_lse.
    """
    # With L the call goes through the operator even where nothing is compiled: a checkpoint sees operators only.
    return flash_attention(q, k, v, is_causal, return_lse=True, **options)[0]


class _Checkpointed:
    """The forward method of a block, under a checkpoint."""

    def __init__(self, forward: Callable[..., Any], keep_attention: bool):
        self.forward = forward
        self.options: dict[str, Any] = {}
        if keep_attention:
            self.options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)

    def __call__(self, *arguments: Any) -> Any:
        # Blocks draw no random numbers, so their state need not be put back for the second run.
        options = self.options
        return checkpoint(self.forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)
