"""Blocks of public architectures, written again in a few lines each, at any width.

None of them was used to find a rule of `fit`. `ARCHITECTURES` maps a name to a module and the shape of its input.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 997


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a Transformer block differs from GPT-2's."""

    norm: type = nn.LayerNorm
    kv_heads: int = 4
    bias: bool = True
    gated: bool = False
    activation: str = "gelu"
    rotary: float = 0.0
    parallel: bool = False
    causal: bool = True
    post_norm: bool = False
    sandwich: bool = False
    softcap: float = 0.0
    alibi: bool = False
    padding_mask: bool = False
    cross: bool = False
    dropout: float = 0.0
    qk_norm: bool = False
    experts: int = 0
    latent: bool = False


def rotate(x, share):
    width = int(x.shape[-1] * share) // 2 * 2
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device), torch.arange(width // 2, device=x.device)).float()
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd, rest = x[..., :width:2], x[..., 1:width:2], x[..., width:]
    return torch.cat((even * cosine - odd * sine, even * sine + odd * cosine, rest), -1)


class Attention(nn.Module):
    """Attention of queries on keys that may be of another sequence."""

    def __init__(self, width, heads, style):
        super().__init__()
        self.style, self.d_head = style, width // heads
        narrow = style.kv_heads * self.d_head
        self.query = nn.Linear(width, width, bias=style.bias)
        if style.latent:
            self.down = nn.Linear(width, width // 4, bias=False)
            self.latent_norm = nn.RMSNorm(width // 4)
        self.key = nn.Linear(width // 4 if style.latent else width, narrow, bias=style.bias)
        self.value = nn.Linear(width // 4 if style.latent else width, narrow, bias=style.bias)
        self.output = nn.Linear(width, width, bias=style.bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.d_head) if style.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x, memory=None):
        style, source = self.style, x if memory is None else memory
        if style.latent:
            source = self.latent_norm(self.down(source))
        q, k, v = (
            y.unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for y in (self.query(x), self.key(source), self.value(source))
        )
        q, k = self.q_norm(q), self.k_norm(k)
        if style.rotary:
            q, k = rotate(q, style.rotary), rotate(k, style.rotary)
        causal = style.causal and memory is None
        if style.softcap:
            k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
            scores = style.softcap * torch.tanh(q @ k.transpose(-1, -2) / math.sqrt(self.d_head) / style.softcap)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            out = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        elif style.alibi or style.padding_mask:
            distance = torch.arange(k.shape[-2], device=x.device, dtype=x.dtype)
            bias = -distance.expand(x.shape[0], 1, q.shape[-2], -1)
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.contiguous())
        else:
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=style.kv_heads < q.shape[1]
            )
        return functional.dropout(self.output(out.transpose(1, 2).flatten(2)), style.dropout)


class FeedForward(nn.Module):
    def __init__(self, width, style, inner=4):
        super().__init__()
        self.style = style
        self.up = nn.Linear(width, inner * width, bias=style.bias)
        self.gate = nn.Linear(width, inner * width, bias=style.bias) if style.gated else None
        self.down = nn.Linear(inner * width, width, bias=style.bias)

    def forward(self, x):
        activation = getattr(functional, self.style.activation)
        hidden = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return functional.dropout(self.down(hidden), self.style.dropout)


class Experts(nn.Module):
    """Two of some experts for each token, each with room for as many tokens as are there."""

    def __init__(self, width, style):
        super().__init__()
        self.router = nn.Linear(width, style.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, style, 2) for _ in range(style.experts))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        gates = weights.new_zeros((*x.shape[:2], len(self.experts))).scatter(-1, chosen, weights)
        return sum(gates[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Block(nn.Module):
    def __init__(self, width, heads, style):
        super().__init__()
        self.style = style
        self.norms = nn.ModuleList(style.norm(width) for _ in range(4 if style.sandwich else 2))
        self.attention = Attention(width, heads, style)
        self.feed_forward = Experts(width, style) if style.experts else FeedForward(width, style)
        if style.cross:
            self.cross, self.cross_norm = Attention(width, heads, style), style.norm(width)

    def forward(self, x, memory=None):
        first, second, *others = self.norms
        if self.style.parallel:
            normed = first(x)
            return x + self.attention(normed) + self.feed_forward(normed)
        if self.style.post_norm:
            x = first(x + self.attention(x))
            return second(x + self.feed_forward(x))
        attended = self.attention(first(x))
        x = x + (others[0](attended) if others else attended)
        if memory is not None and self.style.cross:
            x = x + self.cross(self.cross_norm(x), memory)
        hidden = self.feed_forward(second(x))
        return x + (others[1](hidden) if others else hidden)


class LanguageModel(nn.Module):
    def __init__(self, width, style, layers=3, *, tied=False, positions=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(1024, width) if positions else None
        self.blocks = nn.ModuleList(Block(width, 4, style) for _ in range(layers))
        self.norm = style.norm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class EncoderDecoder(nn.Module):
    """T5: a decoder that attends to an encoder's output."""

    def __init__(self, width):
        super().__init__()
        plain = Style(norm=nn.RMSNorm, bias=False, activation="relu", causal=False, dropout=0.1)
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.ModuleList(Block(width, 4, plain) for _ in range(2))
        self.decoder = nn.ModuleList(
            Block(width, 4, Style(norm=nn.RMSNorm, bias=False, activation="relu", cross=True)) for _ in range(2)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids):
        x = memory = self.embedding(ids)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(x)


class Patches(nn.Module):
    """ViT: patches of an image as tokens."""

    def __init__(self, width, style):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.zeros(1, 64, width))
        self.blocks = nn.ModuleList(Block(width, 4, style) for _ in range(3))
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Selective(nn.Module):
    """Mamba's block with a scan as a loop over chunks of cumulated decays."""

    def __init__(self, width, state=8):
        super().__init__()
        self.norm, self.state = nn.RMSNorm(width), state
        self.inner = nn.Linear(width, 4 * width, bias=False)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.parameters_of = nn.Linear(2 * width, 2 * state + 1, bias=False)
        self.output = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        hidden, gate = self.inner(self.norm(x)).chunk(2, -1)
        hidden = functional.silu(self.conv(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, step = self.parameters_of(hidden).split((self.state, self.state, 1), -1)
        decay = functional.softplus(step).cumsum(1)
        states = (hidden.unsqueeze(-1) * b.unsqueeze(-2) * decay.exp().unsqueeze(-1)).cumsum(1)
        scanned = (states * c.unsqueeze(-2)).sum(-1) * (-decay).exp()
        return x + self.output(scanned * functional.silu(gate))


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        sizes = [(width, width // 4, 1), (width // 4, width // 4, 3), (width // 4, width, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _ in sizes)

    def forward(self, x):
        y = x
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            if index < 2:
                y = functional.relu(y, inplace=True)
        return functional.relu(x + y, inplace=True)


class UNet(nn.Module):
    """A U-Net of two resolutions, with group norms."""

    def __init__(self, width):
        super().__init__()

        def stage(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())

        self.down1, self.down2, self.middle = stage(3, width), stage(width, 2 * width), stage(2 * width, 2 * width)
        self.up, self.out = stage(3 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x):
        first = self.down1(x)
        x = self.middle(self.down2(functional.avg_pool2d(first, 2)))
        return self.out(self.up(torch.cat((functional.interpolate(x, scale_factor=2.0), first), 1)))


def chain(stem, block, layers=3):
    return nn.Sequential(stem, nn.Sequential(*(block() for _ in range(layers))))


LLAMA = {"norm": nn.RMSNorm, "bias": False, "gated": True, "activation": "silu", "rotary": 1.0}
IDS, IMAGES = (4, 128), (4, 3, 64, 64)


def language(style, **options):
    return lambda width: LanguageModel(width, style, **options), IDS


ARCHITECTURES = {
    "GPT-2": language(Style(dropout=0.1), tied=True, positions=True),
    "Llama": language(Style(**LLAMA)),
    "Llama 3": language(Style(**LLAMA, kv_heads=1)),
    "Mistral": language(Style(**LLAMA, kv_heads=2)),
    "Qwen2": language(Style(**{**LLAMA, "bias": True}, kv_heads=2), tied=True),
    "Qwen3": language(Style(**LLAMA, kv_heads=2, qk_norm=True)),
    "Gemma 2": language(Style(**{**LLAMA, "activation": "gelu"}, kv_heads=2, sandwich=True, softcap=50.0), tied=True),
    "OLMo 2": language(Style(**LLAMA, qk_norm=True, post_norm=True)),
    "Mixtral": language(Style(**LLAMA, kv_heads=2, experts=4)),
    "DeepSeek-V2": language(Style(**LLAMA, latent=True)),
    "Phi-2": language(Style(parallel=True, rotary=0.4)),
    "GPT-NeoX": language(Style(parallel=True, rotary=0.25)),
    "Falcon": language(Style(parallel=True, rotary=1.0, kv_heads=1, bias=False)),
    "OPT": language(Style(activation="relu", dropout=0.1), positions=True),
    "BLOOM": language(Style(alibi=True)),
    "BERT": language(Style(causal=False, post_norm=True, padding_mask=True, dropout=0.1), positions=True),
    "CLIP text": language(Style(activation="silu"), positions=True),
    "T5": (EncoderDecoder, IDS),
    "ViT": (lambda width: Patches(width, Style(causal=False)), IMAGES),
    "Mamba": (lambda width: chain(nn.Embedding(VOCABULARY, width), partial(Selective, width)), IDS),
    "ResNet": (lambda width: chain(nn.Conv2d(3, width, 7, 2, 3), partial(Bottleneck, width)), IMAGES),
    "U-Net": (UNet, IMAGES),
}
"""For each architecture a module of a width, and the shape of its input: token ids or images."""
