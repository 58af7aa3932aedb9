"""Published language models, from their configuration files. No torch here."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The shape of a decoder-only language model."""

    repository: str
    """On Hugging Face, where its config.json is."""
    parameters: int
    """Number of weights; tied weights count once."""
    vocab_size: int
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values; each serves a group of query heads."""
    d_head: int
    context: int
    """The longest supported sequence, in tokens."""
    tied: bool = False
    """Whether the output head has the embedding's weight."""
    norm: Literal["rms", "layer"] = "rms"
    """layer: with a bias."""
    bias: Literal["none", "qkv", "all"] = "none"
    """Linear maps of a block that have a bias."""
    gated: bool = True
    """Whether the feed-forward network is SwiGLU, of three matrices, instead of GELU between two."""
    learned_positions: bool = False
    """Whether positions have a learned embedding instead of rotary embeddings."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normalized."""


def _llama(repository: str, parameters: int, vocab_size: int, shape: str, context: int, **others: object) -> Preset:
    """A preset; `shape` is d_model, d_ff, layers, heads, heads of keys and values, and optionally the width of a head.

    The default width is d_model / heads.
    """
    d_model, d_ff, layers, heads, kv_heads, *width = map(int, shape.split())
    return Preset(
        repository=repository,
        parameters=parameters,
        vocab_size=vocab_size,
        d_model=d_model,
        d_ff=d_ff,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        d_head=width[0] if width else d_model // heads,
        context=context,
        **others,  # type: ignore[arg-type]
    )


def _gpt2(repository: str, parameters: int, d_model: int, layers: int, heads: int) -> Preset:
    return _llama(
        repository,
        parameters,
        50_257,
        f"{d_model} {4 * d_model} {layers} {heads} {heads}",
        1024,
        tied=True,
        norm="layer",
        bias="all",
        gated=False,
        learned_positions=True,
    )


def _qwen25(name: str, parameters: int, shape: str, vocab_size: int = 152_064, *, tied: bool = False) -> Preset:
    return _llama(f"Qwen/Qwen2.5-{name}", parameters, vocab_size, shape, 32_768, bias="qkv", tied=tied)


def _qwen3(name: str, parameters: int, shape: str, *, tied: bool = False) -> Preset:
    return _llama(f"Qwen/Qwen3-{name}", parameters, 151_936, shape, 40_960, qk_norm=True, tied=tied)


PRESETS = {
    "gpt2": _gpt2("openai-community/gpt2", 124_439_808, 768, 12, 12),
    "gpt2-medium": _gpt2("openai-community/gpt2-medium", 354_823_168, 1024, 24, 16),
    "gpt2-large": _gpt2("openai-community/gpt2-large", 774_030_080, 1280, 36, 20),
    "gpt2-xl": _gpt2("openai-community/gpt2-xl", 1_557_611_200, 1600, 48, 25),
    "llama-2-7b": _llama("meta-llama/Llama-2-7b-hf", 6_738_415_616, 32_000, "4096 11008 32 32 32", 4096),
    "llama-3-8b": _llama("meta-llama/Meta-Llama-3-8B", 8_030_261_248, 128_256, "4096 14336 32 32 8", 8192),
    "llama-3-70b": _llama("meta-llama/Meta-Llama-3-70B", 70_553_706_496, 128_256, "8192 28672 80 64 8", 8192),
    "llama-3.2-1b": _llama("meta-llama/Llama-3.2-1B", 1_235_814_400, 128_256, "2048 8192 16 32 8", 131_072, tied=True),
    "llama-3.2-3b": _llama("meta-llama/Llama-3.2-3B", 3_212_749_824, 128_256, "3072 8192 28 24 8", 131_072, tied=True),
    "mistral-7b": _llama("mistralai/Mistral-7B-v0.1", 7_241_732_096, 32_000, "4096 14336 32 32 8", 32_768),
    "qwen2.5-0.5b": _qwen25("0.5B", 494_032_768, "896 4864 24 14 2", 151_936, tied=True),
    "qwen2.5-1.5b": _qwen25("1.5B", 1_543_714_304, "1536 8960 28 12 2", 151_936, tied=True),
    "qwen2.5-3b": _qwen25("3B", 3_085_938_688, "2048 11008 36 16 2", 151_936, tied=True),
    "qwen2.5-7b": _qwen25("7B", 7_615_616_512, "3584 18944 28 28 4"),
    "qwen2.5-14b": _qwen25("14B", 14_770_033_664, "5120 13824 48 40 8"),
    "qwen2.5-32b": _qwen25("32B", 32_763_876_352, "5120 27648 64 40 8"),
    "qwen2.5-72b": _qwen25("72B", 72_706_203_648, "8192 29568 80 64 8"),
    "qwen3-0.6b": _qwen3("0.6B", 596_049_920, "1024 3072 28 16 8 128", tied=True),
    "qwen3-8b": _qwen3("8B", 8_190_735_360, "4096 12288 36 32 8"),
    "smollm2-135m": _llama("HuggingFaceTB/SmolLM2-135M", 134_515_008, 49_152, "576 1536 30 9 3", 8192, tied=True),
    "smollm2-1.7b": _llama("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384, 49_152, "2048 8192 24 32 32", 8192, tied=True),
    "tinyllama-1.1b": _llama(
        "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 1_100_048_384, 32_000, "2048 5632 22 32 4", 2048
    ),
}
"""Language models by name."""
