"""What the FlashAttention sections share: the implementations' names, and whether any was measured here."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.data import select, statistic

PHASES = ["forward", "backward", "forward_backward"]
NAMES = {
    "triton": "ours (Triton)",
    "triton_compiled_backward": "ours, backward in compiled PyTorch",
    "plain": "plain",
    "plain_compiled": "plain, compiled",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "SDPA cuDNN",
    "flex": "FlexAttention",
    "flash_attention_4": "FlashAttention-4",
    "tiled": "ours (PyTorch)",
}


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Whether this machine measured FlashAttention, and if not, why."""
    table = tables["flash"]
    if len(select(table, metric="forward_backward")):
        return {"measured": True}
    why = table[table["status"] != "ok"]["message"]
    return {"measured": False, "why": why.iloc[0] if len(why) else "not run"}


def times(rows: DataFrame, phase: str, **cell: Any) -> float | None:
    """Median time of a phase, ms."""
    return statistic(rows, "median", metric=phase, **cell)
