"""Utilizations that others have published, and the same by this report's count of FLOPs where tokens/s are known."""

from dataclasses import dataclass

from numpy import nan
from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.markup import Typst

H100 = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A training step of others in bf16."""

    step: str
    """Typst markup, with its source."""
    machine: str
    mfu: str
    """Percent, as published."""
    tokens: float = nan
    """Per second on one H100, and what its FLOPs follow from: weights of matmuls, blocks, width and context."""
    weights: float = nan
    blocks: int = 0
    width: int = 0
    context: int = 0

    @property
    def counted(self) -> float:
        """Percent of the peak: six FLOPs per weight and token, and attention's causal half."""
        peak = gpu_of(H100)
        assert peak is not None
        per_token = 6 * self.weights + 6 * self.blocks * self.width * self.context
        return 100 * self.tokens * per_token / peak.flops("bf16")


PUBLISHED = (
    Published(
        step="LLMQ, Qwen2.5 3B @schultheis2026",
        machine="1 H100",
        mfu="57",
        tokens=30e3,
        weights=36 * (2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 11008) + 2048 * 151936,
        blocks=36,
        width=2048,
        context=1024,
    ),
    Published(
        step="torchtitan, Llama 3.1 8B, FSDP, compiled @torchtitan2024",
        machine="8 H100 at 500 W",
        mfu="39",
        tokens=6667,
        weights=32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256,
        blocks=32,
        width=4096,
        context=8192,
    ),
    Published(step="Megatron-LM, GPT 2B to 462B @megatron2024", machine="up to 6144 H100", mfu="41 to 48"),
    Published(step="MaxText, 32B to 1160B @maxtext2025", machine="64 to 6144 TPU v5p", mfu="64 to 70"),
    Published(step="PaLM 540B @chowdhery2022", machine="6144 TPU v4", mfu="46"),
)


def published_table() -> DataFrame:
    """One row for each of PUBLISHED: `shown`, `machine`, `mfu`, as published, `tokens`, and `counted`, as here."""
    rows = [{**vars(row), "shown": Typst(row.step), "counted": row.counted} for row in PUBLISHED]
    return DataFrame(rows)
