"""Memory of a training step whose blocks are checkpointed in segments, and of other strategies.

A segment of k blocks keeps its input for the backward pass, which then recomputes the segment's forward pass, with
everything saved (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.transformer import parameters, state_bytes
from cs336_systems.accounting.units import BYTES, FP32_BYTES

INT64_BYTES = 8
"""Bytes of a token's id."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes in use during a training step with AdamW, with weights, gradients and moments in fp32.

    Left out: rounding by the allocator, libraries' workspaces, and temporary memory of kernels.
    """

    block: BlockActivations
    vocab_size: int
    segment: int
    """Blocks per segment; 0: no recomputation."""

    @property
    def between_steps(self) -> int:
        """Weights and AdamW's two moments, which outlive a step's gradients."""
        return self.state - self._gradients

    @property
    def saved_for_backward(self) -> int:
        """Bytes saved for the backward pass by forward pass and loss, copies of weights included, weights not."""
        if not self.segment:
            return self._layers * self._block_saved + self._head_saved
        return math.ceil(self._layers / self.segment) * self.block.residual + self._head_saved

    @property
    def peak(self) -> int:
        """The most bytes in use at any time."""
        return max(count for _, count in self.turns())

    def turns(self) -> Iterator[tuple[int | None, int]]:
        """The most bytes in use at the loss, at each block's turn in the backward pass, and at the optimizer."""
        for index, gradients, activations in self.turns_of_passes():
            yield index, self.between_steps + gradients + activations
        yield None, self.state

    def turns_of_passes(self) -> Iterator[tuple[int | None, int, int]]:
        """Bytes of weights' gradients, and of activations with temporaries, at the loss and at each block's turn.

        At a block's turn there are: gradients of all later weights; inputs of the segments before its own; tensors
        saved by its segment's blocks up to it; and temporaries of its backward pass.
        """
        yield None, 0, self.saved_for_backward + self._working_of_loss
        shape = self.block.shape
        gradients = FP32_BYTES * (self.vocab_size * shape.d_model + shape.d_model)  # of the head and the final norm
        for index in reversed(range(self._layers)):
            segments_before, blocks_before = divmod(index, self.segment or self._layers)
            kept = segments_before * self.block.residual + (blocks_before + 1) * self._block_saved
            yield index, gradients, kept + self._working_of_block
            gradients += self.block.parameter_gradients

    @property
    def _layers(self) -> int:
        return self.block.shape.num_layers

    @property
    def state(self) -> int:
        """Weights, gradients and AdamW's two moments, which checkpointing cannot reduce."""
        return state_bytes("train_step", self.block.shape, self.vocab_size)

    @property
    def _gradients(self) -> int:
        return FP32_BYTES * parameters(self.block.shape, self.vocab_size)

    @property
    def _block_saved(self) -> int:
        return self.block.saved_bytes + self.block.weight_copies

    @property
    def _logits(self) -> int:
        """The number of logits."""
        return self.block.tokens * self.vocab_size

    @property
    def _casts_log_probabilities(self) -> bool:
        """Whether cross-entropy makes them in bf16 and casts them, as on a GPU; on a CPU autocast casts the logits."""
        return self.block.precision == "bf16" and self.block.on_gpu

    @property
    def _log_probabilities(self) -> int:
        """Bytes of log-probabilities that log-softmax and likelihood save: one fp32 tensor, or one of each dtype."""
        return (FP32_BYTES + (BYTES["bf16"] if self._casts_log_probabilities else 0)) * self._logits

    @property
    def _working_of_loss(self) -> int:
        """Gradients that cross-entropy's backward pass holds at once: of the log-probabilities, and of the logits.

        Where the former are cast, the fp32 log-probabilities are gone before there are two.
        """
        return (1 if self._casts_log_probabilities else 2) * FP32_BYTES * self._logits

    @property
    def _working_of_block(self) -> int:
        """The most bytes that a block's backward pass needs on top of the block's saved tensors.

        There are two candidates. In the feed-forward network: the gradients of both factors of the gated product,
        while the factors are still there. In plain attention: the gradients of the attention weights and of the
        scores, when all that was saved after them is gone; a GPU's kernel also needs the product of weights and
        gradient.
        """
        block, shape = self.block, self.block.shape
        inner = block.tokens * shape.d_ff * BYTES[block.precision]
        down = FP32_BYTES * shape.d_model * shape.d_ff - block.weight_copies_of(shape.d_ff)
        feed_forward = block.residual + 2 * inner + down
        if block.attention == "flash":
            return feed_forward
        saved = block.saved()
        softmax = next(index for index, tensor in enumerate(saved) if tensor.operator == "softmax")
        freed = sum(tensor.bytes for tensor in saved[softmax + 1 :])
        values = block.tokens * shape.d_model * BYTES[block.precision]
        width = 3 * shape.d_ff + shape.d_model
        weights = FP32_BYTES * shape.d_model * width - block.weight_copies_of(width)
        scores = (3 if block.on_gpu else 2) * saved[softmax].bytes
        return max(feed_forward, block.residual + scores + values + weights - freed)

    @property
    def _head_saved(self) -> int:
        """Bytes saved outside the blocks: token ids, the final norm, the head's input and weight, the loss."""
        numbers = self.block.tokens * self.block.shape.d_model
        copy = BYTES["bf16"] * self.vocab_size * self.block.shape.d_model if self.block.precision == "bf16" else 0
        token_ids = INT64_BYTES * (self.block.tokens + self.block.batch_size)  # inputs and targets overlap
        targets = INT64_BYTES * self.block.tokens
        norm = 2 * self.block.residual + FP32_BYTES * self.block.tokens
        total_weight = FP32_BYTES  # a number that cross-entropy keeps
        head_input = BYTES[self.block.precision] * numbers
        return token_ids + norm + head_input + copy + self._log_probabilities + targets + total_weight


def best_segment(block: BlockActivations, vocab_size: int) -> int:
    """The segment length of the lowest peak, the shortest of several."""
    lengths = range(1, block.shape.num_layers + 1)
    return min(lengths, key=lambda length: StepMemory(block=block, vocab_size=vocab_size, segment=length).peak)
