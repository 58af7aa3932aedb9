"""The language models of `presets` as PyTorch modules, written like training code."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cs336_systems.fit.presets import Preset


class Decoder(nn.Module):
    """A decoder-only language model: token ids to logits."""

    def __init__(self, preset: Preset):
        super().__init__()
        self.token_embedding = nn.Embedding(preset.vocab_size, preset.d_model)
        self.positions = nn.Embedding(preset.context, preset.d_model) if preset.learned_positions else None
        self.blocks = nn.ModuleList(Block(preset) for _ in range(preset.num_layers))
        self.final_norm = norm(preset, preset.d_model)
        self.lm_head = nn.Linear(preset.d_model, preset.vocab_size, bias=False)
        if preset.tied:
            self.lm_head.weight = self.token_embedding.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, tokens] integers to logits [batch, tokens, vocabulary]."""
        x = self.token_embedding(token_ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(token_ids.shape[-1], device=token_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.final_norm(x))


class Block(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a residual connection."""

    def __init__(self, preset: Preset):
        super().__init__()
        self.attention_norm = norm(preset, preset.d_model)
        self.attention = Attention(preset)
        self.feed_forward_norm = norm(preset, preset.d_model)
        self.feed_forward = FeedForward(preset)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d_model] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Attention(nn.Module):
    """Causal attention with grouped queries."""

    def __init__(self, preset: Preset):
        super().__init__()
        wide, narrow = preset.num_heads * preset.d_head, preset.num_kv_heads * preset.d_head
        bias = preset.bias != "none"
        self.d_head, self.rotates = preset.d_head, not preset.learned_positions
        self.query = nn.Linear(preset.d_model, wide, bias=bias)
        self.key = nn.Linear(preset.d_model, narrow, bias=bias)
        self.value = nn.Linear(preset.d_model, narrow, bias=bias)
        self.output = nn.Linear(wide, preset.d_model, bias=preset.bias == "all")
        self.query_norm = norm(preset, preset.d_head) if preset.qk_norm else nn.Identity()
        self.key_norm = norm(preset, preset.d_head) if preset.qk_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, d_model] to the same shape."""
        q, k, v = (project(x).unflatten(-1, (-1, self.d_head)) for project in (self.query, self.key, self.value))
        q, k, v = (heads.transpose(1, 2) for heads in (self.query_norm(q), self.key_norm(k), v))
        if self.rotates:
            q, k = rotated(q), rotated(k)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU, or GELU between two linear maps."""

    def __init__(self, preset: Preset):
        super().__init__()
        bias = preset.bias == "all"
        self.up = nn.Linear(preset.d_model, preset.d_ff, bias=bias)
        self.gate = nn.Linear(preset.d_model, preset.d_ff, bias=bias) if preset.gated else None
        self.down = nn.Linear(preset.d_ff, preset.d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to the same shape."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def norm(preset: Preset, width: int) -> nn.Module:
    """RMSNorm, or LayerNorm with a bias."""
    return nn.LayerNorm(width) if preset.norm == "layer" else nn.RMSNorm(width)


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features, [batch, heads, tokens, d_head], by angles in fp32 as reference code computes them."""
    positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    frequencies = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    cosine, sine = (torch.cat((each, each), -1).to(x.dtype) for each in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine
