"""Small language models for testing wrappers and optimizers, made of PyTorch's layers or of the layers under test.

The worker reads this file without this project's package, since the code under test may have the same package name.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 32
CONTEXT = 6


class Layers(NamedTuple):
    """The layers of a model: by default PyTorch's, without a bias like the handout's."""

    linear: Callable[[int, int], nn.Module] = partial(nn.Linear, bias=False)
    embedding: Callable[[int, int], nn.Module] = nn.Embedding


class Plain(nn.Module):
    """Linear and Embedding layers with rows divisible by two and four ranks, and one frozen parameter."""

    def __init__(self, layers: Layers):
        super().__init__()
        self.embedding = layers.embedding(VOCABULARY, 8)
        self.first = layers.linear(8, 16)
        self.second = layers.linear(16, 8)
        self.head = layers.linear(8, VOCABULARY)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map token ids [batch, sequence] to logits [batch, sequence, vocabulary]."""
        x = self.embedding(token_ids)
        x = x + self.second(nn.functional.silu(self.first(x)))
        return self.head(x * self.frozen.to(x.dtype))


class Normed(Plain):
    """The layers of the handout's FSDP: Linear and Embedding layers, and a norm's weight, which is not sharded."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        del self.frozen
        self.norm = nn.Parameter(torch.ones(8))

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map token ids [batch, sequence] to logits [batch, sequence, vocabulary]."""
        x = self.embedding(token_ids)
        x = x + self.second(nn.functional.silu(self.first(x)))
        inverse = (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return self.head((x * inverse * self.norm).to(x.dtype))


class Tied(Plain):
    """The same with one weight for embedding and head."""

    def __init__(self, layers: Layers):
        super().__init__(layers)
        self.head.weight = self.embedding.weight


class Odd(nn.Module):
    """Tied, frozen and unused parameters, a scalar, and rows divisible by no number of ranks."""

    def __init__(self, layers: Layers):
        super().__init__()
        self.embedding = layers.embedding(VOCABULARY - 1, 5)
        self.unused = layers.linear(3, 7)
        self.inner = layers.linear(5, 13)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.outer = nn.Linear(13, 5)
        self.frozen = layers.linear(5, 5).requires_grad_(False)
        self.head = layers.linear(5, VOCABULARY - 1)
        self.head.weight = self.embedding.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map token ids to logits."""
        x = self.embedding(token_ids % (VOCABULARY - 1))
        x = x + self.scale.to(x.dtype) * self.outer(torch.tanh(self.inner(x)))
        return self.head(x + self.frozen(x))


class Checkpointed(nn.Module):
    """Two blocks that are recomputed in the backward pass."""

    def __init__(self, layers: Layers):
        super().__init__()
        self.embedding = layers.embedding(VOCABULARY, 8)
        blocks = [nn.Sequential(layers.linear(8, 20), nn.SiLU(), layers.linear(20, 8)) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks)
        self.head = layers.linear(8, VOCABULARY)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Map token ids to logits."""
        x = self.embedding(token_ids)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


MODELS = {"plain": Plain, "normed": Normed, "tied": Tied, "odd": Odd, "checkpointed": Checkpointed}


def build(name: str, layers: Layers, weights: dict[str, Tensor], device: torch.device) -> nn.Module:
    """Make a model and give its parameters values, by their names."""
    model = MODELS[name](layers)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weights[key])
    return model.to(device)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross entropy of a batch of token ids [sequences, CONTEXT + 1]."""
    logits = model(batch[:, :-1]).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten() % logits.shape[-1])
