"""Attention implementations as figures, answers and checks know them: names, timed passes, what was measured."""

from typing import Any

from pandas import DataFrame

from scripts.data import select, statistic

PASSES = ["forward", "backward", "forward_backward"]
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
    "tiled_compiled": "ours (PyTorch), compiled",
}


def availability(table: DataFrame) -> dict[str, Any]:
    """Whether the experiment `flash` was measured here, and if not, why."""
    if len(select(table, metric="forward_backward")):
        return {"measured": True}
    why = table[table["status"] != "ok"]["message"]
    return {"measured": False, "why": why.iloc[0] if len(why) else "not run"}


def median_time(rows: DataFrame, timed_pass: str, **cell: Any) -> float | None:
    """Median time of a pass, ms."""
    return statistic(rows, "median", metric=timed_pass, **cell)
