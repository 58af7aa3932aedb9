"""Language models that are not the project's, which only share its interface; and copies of models."""

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.model import TransformerLM, build_model


def through_a_file(value: Any) -> Any:
    """A copy of a model, an optimizer or anything else, saved and loaded."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def ours(shape, vocab_size, context_length, device="cpu", **options):
    """The project's model."""
    sizes = {"vocab_size": vocab_size, "context_length": context_length, "device": torch.device(device)}
    return build_model("cs336_systems.model:TransformerLM", shape, **sizes, **options)


def with_random_norms(model: nn.Module) -> nn.Module:
    """A model whose norms have random weights: ones would hide a missing multiplication."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


class ConvolutionLM(nn.Module):
    """A causal convolution instead of attention, tied weights: nothing of TransformerLM but its seven arguments."""

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        rope_theta: float,
    ):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, d_model))
        self.layers = nn.ModuleList(
            nn.Conv1d(d_model, d_model, kernel_size=3, groups=num_heads) for _ in range(num_layers)
        )

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.table[token_ids].transpose(1, 2)
        for layer in self.layers:
            x = x + torch.tanh(layer(nn.functional.pad(x, (2, 0))))
        return x.transpose(1, 2) @ self.table.T


class BrokenLM(ConvolutionLM):
    """A model with a bug."""

    def forward(self, token_ids: Tensor) -> Tensor:
        raise RuntimeError("shapes cannot be multiplied: a bug, not a measurement")


class TableLM(nn.Module):
    """The least that can be compiled: a table of logits, added to a bias."""

    def __init__(self, vocab_size: int, d_model: int, **_: object):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size))
        self.bias = nn.Parameter(torch.randn(vocab_size))

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.table[token_ids] + self.bias


class CheckpointedLM(TransformerLM):
    """The project's model; each block is computed again in the backward pass."""

    use_reentrant = False

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.token_embedding(token_ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.lm_head(self.final_norm(x))


class ReentrantLM(CheckpointedLM):
    """The same by autograd's older way, a backward pass within the backward pass."""

    use_reentrant = True


class DropoutLM(TableLM):
    """A table of logits; half are dropped."""

    def forward(self, token_ids: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(token_ids), training=self.training)


class TwoStreamsLM(nn.Module):
    """Two linear maps of an embedding, the second on a stream of its own."""

    def __init__(self, vocab_size: int, d_model: int, **_: object):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.left = nn.Linear(d_model, vocab_size, bias=False)
        self.right = nn.Linear(d_model, vocab_size, bias=False)
        self.side = torch.cuda.Stream()

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            right = self.right(x)
        left = self.left(x)
        torch.cuda.current_stream().wait_stream(self.side)
        return left + right


class Shift(nn.Module):
    """The least that a block can be."""

    def __init__(self, width: int):
        super().__init__()
        self.by = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


class BlocksLM(nn.Module):
    """A table whose logits pass through a block, which can be compiled by itself."""

    def __init__(self, vocab_size: int, d_model: int, **_: object):
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)
        self.blocks = nn.ModuleList([Shift(vocab_size)])

    def forward(self, token_ids: Tensor) -> Tensor:
        (block,) = self.blocks
        return block(self.table(token_ids))


class Raises(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("a bad batch")
