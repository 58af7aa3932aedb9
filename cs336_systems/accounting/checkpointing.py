"""Memory of a training step whose blocks are checkpointed in segments, and what other strategies would need.

A segment of k blocks keeps its input for the backward pass, which then computes the segment's forward pass again, with
everything saved (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cs336_systems.accounting.activations import INT64_BYTES, BlockActivations
from cs336_systems.accounting.transformer import parameters, state_bytes
from cs336_systems.accounting.units import BYTES, FP32_BYTES


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes in use during a training step with AdamW, the weights and all that belongs to them in fp32.

    Left out: rounding by the allocator, libraries' workspaces, and what a kernel needs while it runs.
    """

    block: BlockActivations
    vocab_size: int
    segment: int
    """Blocks per segment; 0: nothing is computed again."""

    @property
    def between_steps(self) -> int:
        """Weights and AdamW's two moments: what a step finds when its gradients are gone."""
        return self._state - self._gradients

    @property
    def saved_for_backward(self) -> int:
        """What the forward pass and the loss leave for the backward pass, weights not counted, their copies counted."""
        if not self.segment:
            return self._layers * self._block_saved + self._head_saved
        return math.ceil(self._layers / self.segment) * self.block.residual + self._head_saved

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self._state, self._peak_of_loss(), *self._peaks_of_blocks())

    @property
    def _layers(self) -> int:
        return self.block.shape.num_layers

    @property
    def _state(self) -> int:
        return state_bytes("train_step", self.block.shape, self.vocab_size)

    @property
    def _gradients(self) -> int:
        return FP32_BYTES * parameters(self.block.shape, self.vocab_size)

    @property
    def _block_saved(self) -> int:
        return self.block.saved_bytes + self.block.weight_copies

    @property
    def _log_probabilities(self) -> int:
        return FP32_BYTES * self.block.tokens * self.vocab_size

    @property
    def _head_saved(self) -> int:
        """What is saved outside the blocks: token ids, the final norm, the head's input and weight, the loss."""
        numbers = self.block.tokens * self.block.shape.d_model
        copy = BYTES["bf16"] * self.vocab_size * self.block.shape.d_model if self.block.precision == "bf16" else 0
        token_ids = INT64_BYTES * (self.block.tokens + self.block.batch_size)  # inputs and targets overlap
        targets = INT64_BYTES * self.block.tokens
        norm = 2 * self.block.residual + FP32_BYTES * self.block.tokens
        total_weight = FP32_BYTES  # a number that cross-entropy keeps
        head_input = BYTES[self.block.precision] * numbers
        return token_ids + norm + head_input + copy + self._log_probabilities + targets + total_weight

    def _peak_of_loss(self) -> int:
        """While the backward pass of cross-entropy turns the log-probabilities' gradient into the logits'."""
        return self.between_steps + self.saved_for_backward + 2 * self._log_probabilities

    def _peaks_of_blocks(self) -> Iterator[int]:
        """At each block's turn in the backward pass, from the last to the first.

        Then there are: gradients of what comes after it; inputs of the segments before its own; what its segment's
        blocks up to it saved; and what its backward pass makes.
        """
        shape = self.block.shape
        gradients = self._gradients - FP32_BYTES * self.vocab_size * shape.d_model  # less the embedding's
        gradients -= self._layers * self.block.parameter_gradients
        for index in reversed(range(self._layers)):
            segments_before, blocks_before = divmod(index, self.segment or self._layers)
            kept = segments_before * self.block.residual + (blocks_before + 1) * self._block_saved
            yield self.between_steps + gradients + kept + self.block.backward_working
            gradients += self.block.parameter_gradients
