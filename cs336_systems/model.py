"""The Transformer language model under measurement, written op by op so that a profile matches the source.

Pre-norm blocks, RMSNorm, rotary position embeddings, causal multi-head attention, SwiGLU, no biases, untied embedding
and output head. Any class with `TransformerLM`'s seven arguments can stand in for it (see `load_model_class`).
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.attention import flash_attention, plain_attention
from cs336_systems.sizes import ModelShape

ROPE_THETA = 10_000.0

AttentionFunction = Callable[..., Tensor]
"""Function of (q, k, v, is_causal=...), [batch, heads, sequence, d_head] each, to the same shape."""

ATTENTION: dict[str, AttentionFunction] = {
    "plain": plain_attention,
    "flash": flash_attention,
    "sdpa": nn.functional.scaled_dot_product_attention,
}


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A bias-free linear map, initialized N(0, 2 / (d_in + d_out)) truncated at three standard deviations."""
    layer = nn.Linear(d_in, d_out, bias=False)
    std = (2 / (d_in + d_out)) ** 0.5
    nn.init.trunc_normal_(layer.weight, std=std, a=-3 * std, b=3 * std)
    return layer


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in fp32 (Zhang & Sennrich 2019, equation 4)."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to [..., d_model], in the dtype of x."""
        wide = x.float()
        inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * inverse_rms * self.weight).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Rotates each pair of features by an angle that grows with the position (Su et al. 2021, section 3.2)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context_length: int, d_head: int, theta: float):
        super().__init__()
        frequencies = theta ** (-torch.arange(0, d_head, 2) / d_head)
        angles = torch.arange(context_length)[:, None] * frequencies  # [context_length, d_head / 2]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., sequence, d_head] to the same shape and dtype; position i is the i-th of the sequence."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


class SelfAttention(nn.Module):
    """Causal multi-head self-attention with rotary embeddings on queries and keys."""

    def __init__(self, d_model: int, num_heads: int, rope: RotaryEmbedding, attention: AttentionFunction):
        super().__init__()
        self.num_heads = num_heads
        self.attention = attention
        self.query = linear(d_model, d_model)
        self.key = linear(d_model, d_model)
        self.value = linear(d_model, d_model)
        self.output = linear(d_model, d_model)
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, d_model] to the same shape."""
        q, k, v = (self._split_heads(project(x)) for project in (self.query, self.key, self.value))
        attended = self.attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.output(attended.transpose(-3, -2).flatten(-2))

    def _split_heads(self, x: Tensor) -> Tensor:
        """[batch, sequence, d_model] to [batch, heads, sequence, d_head]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) ∘ up(x)) (Shazeer 2020, equation 6)."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate = linear(d_model, d_ff)
        self.up = linear(d_model, d_ff)
        self.down = linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, rope: RotaryEmbedding, attention: AttentionFunction):
        super().__init__()
        self.attention_norm = RMSNorm(d_model)
        self.attention = SelfAttention(d_model, num_heads, rope, attention)
        self.feed_forward_norm = RMSNorm(d_model)
        self.feed_forward = SwiGLU(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, d_model] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class TransformerLM(nn.Module):
    """A decoder-only language model: token ids to next-token logits.

    If it is built inside `with torch.device(device):`, its weights are created on that device, never on the host.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        rope_theta: float,
        attention: AttentionFunction = plain_attention,
        checkpoint_segment: int = 0,
    ):
        """Make a model with random weights.

        Args:
            vocab_size: rows of the embedding and of the output head.
            context_length: the longest sequence, in tokens.
            d_model: width of the residual stream.
            num_layers: blocks.
            num_heads: attention heads per block.
            d_ff: inner width of the feed-forward networks.
            rope_theta: base of the rotary frequencies.
            attention: a value of ATTENTION, or a function like them.
            checkpoint_segment: number of consecutive blocks that keep only their input for the backward pass, which
                recomputes the rest (activation checkpointing, Chen et al. 2016); the last segment may be shorter. 0
                keeps everything.

        Raises:
            ValueError: a negative checkpoint_segment.
        """
        super().__init__()
        if checkpoint_segment < 0:
            raise ValueError(f"checkpoint_segment is {checkpoint_segment}; allowed: whole numbers from 0")
        self.checkpoint_segment = checkpoint_segment
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        nn.init.trunc_normal_(self.token_embedding.weight, std=1.0, a=-3.0, b=3.0)
        rope = RotaryEmbedding(context_length, d_model // num_heads, rope_theta)
        self.blocks = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, rope, attention) for _ in range(num_layers)
        )
        self.final_norm = RMSNorm(d_model)
        self.lm_head = linear(d_model, vocab_size)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, sequence] integers to logits [batch, sequence, vocab_size]."""
        x = self.token_embedding(token_ids)
        if self.checkpoint_segment:
            x = run_in_segments(run_blocks, x, list(self.blocks), self.checkpoint_segment)
        else:
            x = run_blocks(x, self.blocks)
        return self.lm_head(self.final_norm(x))


def run_in_segments(
    run: Callable[[Tensor, Sequence[nn.Module]], Tensor], x: Tensor, blocks: Sequence[nn.Module], length: int
) -> Tensor:
    """Run consecutive blocks on x, each segment of a length under a checkpoint."""
    for start in range(0, len(blocks), length):
        segment = blocks[start : start + length]
        # Without random numbers, their state need not be restored for the second run, which a CUDA graph cannot do.
        draws = any(map(may_draw_random_numbers, segment))
        x = checkpoint(run, x, segment, use_reentrant=False, preserve_rng_state=draws)
    return x


def run_blocks(x: Tensor, blocks: Iterable[nn.Module]) -> Tensor:
    """Run blocks one after another on x, [batch, sequence, d_model]."""
    for block in blocks:
        x = block(x)
    return x


def may_draw_random_numbers(block: nn.Module) -> bool:
    """Whether a block has parts from outside this project, such as dropout, and so may draw random numbers."""
    return not all(_is_ours(type(x)) and _is_ours(getattr(x, "attention", type(x))) for x in block.modules())


def _is_ours(x: Any) -> bool:
    known = (nn.Linear, nn.ModuleList, *ATTENTION.values())
    return x in known or str(getattr(x, "__module__", "")).startswith("cs336_systems.")


def load_model_class(spec: str) -> Callable[..., nn.Module]:
    """Load the class that `package.module:Class` names; it accepts `TransformerLM`'s seven arguments by keyword.

    Raises:
        ValueError: the specification is malformed, or cannot be imported.
    """
    module, separator, name = spec.partition(":")
    if not separator:
        raise ValueError(f"model is {spec!r}; allowed: package.module:Class")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model {spec!r} cannot be loaded: {error}") from None


def build_model(
    model: str,
    shape: ModelShape,
    *,
    vocab_size: int,
    context_length: int,
    attention: str = "plain",
    checkpoint_segment: int = 0,
    device: torch.device,
) -> nn.Module:
    """Build a model with random weights on the device: the largest would not fit on a small host.

    Args:
        model: the class, in the format of `load_model_class`.
        shape: its size.
        vocab_size: rows of the embedding and of the output head.
        context_length: the longest sequence that it accepts, in tokens.
        attention: a key of ATTENTION; models other than TransformerLM have their own attention and accept only `plain`.
        checkpoint_segment: as of TransformerLM; other models accept only 0.
        device: where its weights are created and stay.
    """
    # Only our own model is known to accept these; others have their own attention under any name.
    options: dict[str, Any] = {} if attention == "plain" else {"attention": ATTENTION[attention]}
    if checkpoint_segment:
        options["checkpoint_segment"] = checkpoint_segment
    with device:
        return load_model_class(model)(
            vocab_size=vocab_size,
            context_length=context_length,
            d_model=shape.d_model,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            d_ff=shape.d_ff,
            rope_theta=ROPE_THETA,
            **options,
        )
