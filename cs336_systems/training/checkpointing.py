"""Activation checkpointing that keeps attention's output, so that attention is not recomputed.

    checkpoint_blocks(model, blocks=12)     # before the blocks are compiled

In a block's recomputation, only attention grows with the square of the sequence length. Its backward pass needs its
output and log-sum-exp (L): (2 d_model + 4 heads) bytes per token in bf16, about as much as the block's input. The rest
of the block is matmuls and elementwise operations.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cs336_systems.attention import flash_attention
from cs336_systems.model import may_draw_random_numbers
from cs336_systems.training.compiled_blocks import blocks_of
from cs336_systems.training.fused_model import FusedSwiGLU, FusedTransformerBlock

KEPT = [torch.ops.cs336_systems.attention_forward.default]


def checkpoint_blocks(model: nn.Module, blocks: int | None = None, *, keep_attention: bool = True) -> None:
    """Checkpoint blocks of a model, in place: they keep only their input, and attention's output and log-sum-exp.

    The first blocks are checkpointed: the last ones keep everything, and free it first. Results and gradients are
    unchanged, bit for bit if the kernels are deterministic. Call it after `fuse`, and before the blocks are compiled: a
    block is then compiled together with its recomputation. Parameters and their names stay the same.

    Args:
        model: has its blocks in a ModuleList `blocks`, and in each a module whose attribute `attention` is
            `flash_attention`, as TransformerLM and FusedTransformerLM do. Blocks of other classes may draw random
            numbers, as dropout does: the recomputation repeats them.
        blocks: number of blocks; None: all.
        keep_attention: False keeps only the input: the least memory, and the most time.

    Raises:
        ValueError: the model has no `blocks` or too few, a block is already checkpointed or compiled, or keep_attention
            is set and a block does not call flash_attention. Nothing is changed in this case.
    """
    layers = blocks_of(model)
    count = len(layers) if blocks is None else blocks
    if not 0 <= count <= len(layers):
        raise ValueError(f"blocks is {count}; allowed: 0 to {len(layers)}, the model's")
    chosen = list(dict.fromkeys(layers[:count]))
    for number, block in enumerate(chosen):
        _check(block, number, keep_attention)
    for block in chosen:
        for module in _attentions(block) if keep_attention else ():
            module.attention = kept_attention  # type: ignore[assignment]
        if isinstance(block, FusedTransformerBlock):
            block.returns_sum = True
            if isinstance(block.feed_forward, FusedSwiGLU):  # else its hidden layer would be computed three times
                block.feed_forward.keep_hidden = True
        block.forward = _Checkpointed(block, keep_attention)


def _check(block: nn.Module, number: int, keep_attention: bool) -> None:
    if isinstance(block.forward, _Checkpointed):
        raise ValueError(f"block {number} is already checkpointed")
    if block._compiled_call_impl is not None or hasattr(block, "_orig_mod"):
        raise ValueError(f"block {number} is already compiled; allowed: compiling it after checkpoint_blocks")
    if keep_attention and not _attentions(block):
        raise ValueError(f"block {number} does not call flash_attention; allowed: such blocks, or no keep_attention")


def _attentions(block: nn.Module) -> list[nn.Module]:
    return [m for m in block.modules() if getattr(m, "attention", None) in (flash_attention, kept_attention)]


def kept_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """flash_attention, except return_lse, as an operator, so that a checkpoint can keep its results."""
    # With L the call goes through the operator even if nothing is compiled: a checkpoint sees only operators.
    return flash_attention(q, k, v, is_causal, return_lse=True, **options)[0]


class _Checkpointed:
    """The forward method of a block, under a checkpoint. It is copied and pickled with the block."""

    def __init__(self, block: nn.Module, keep_attention: bool):
        self.block = block
        self.replaced = block.__dict__.get("forward")
        """A forward method that the block had instead of its class's."""
        self.keep_attention = keep_attention
        self.recomputing = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.recomputing:
            return self.compute(*arguments, **named)
        options: dict[str, Any] = {}
        if self.keep_attention:
            options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
        # Without random numbers, their state need not be restored for the second run, which a CUDA graph cannot do.
        options["preserve_rng_state"] = may_draw_random_numbers(self.block)
        forwards = iter((self.compute,))

        def run(*arguments: Any) -> Any:
            if torch.compiler.is_compiling():
                return self.compute(*arguments, **named)
            return next(forwards, self.compute_again)(*arguments, **named)

        return checkpoint(run, *arguments, use_reentrant=False, **options)

    def compute(self, *arguments: Any, **named: Any) -> Any:
        """Run the block's own forward method."""
        forward = self.replaced or partial(type(self.block).forward, self.block)
        return forward(*arguments, **named)

    def compute_again(self, *arguments: Any, **named: Any) -> Any:
        """Call the block, whose hooks gather its weights if it is sharded."""
        self.recomputing = True
        try:
            return self.block(*arguments, **named)
        finally:
            self.recomputing = False
