"""Attention implementations as figures, answers and checks know them: names, timed passes, what was measured."""

from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.units import BYTES, MIB
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


OURS = "triton"
TENSORS_AND_SUMS = 10
"""Tensors of the inputs' size at the peak of our backward pass in 16-bit types where dQ is summed in fp32: q, k, v, o,
their gradients, and the sums, which count as two."""
NUMBERS_PER_QUERY = 0.2
"""Tensors of that size, at most, that L and D, some fp32 numbers per query, take besides."""


def kernels_for_hopper(peaks: DataFrame) -> Series:
    """Whether ours ran its kernels for Hopper, by rows of peak memory: only those sum dQ in fp32 in memory."""
    numbers = peaks["batch_size"] * peaks["heads"] * peaks["sequence"] * peaks["d"]
    tensors = peaks["mean"] * MIB / (numbers * peaks["precision"].map(BYTES))
    return (peaks["implementation"] == OURS) & (tensors - TENSORS_AND_SUMS).between(0, NUMBERS_PER_QUERY)


def availability(table: DataFrame) -> dict[str, Any]:
    """Whether the experiment `flash` was measured here, and if not, why."""
    if len(select(table, metric="forward_backward")):
        return {"measured": True}
    why = table[table["status"] != "ok"]["message"]
    return {"measured": False, "why": why.iloc[0] if len(why) else "not run"}


def median_time(rows: DataFrame, timed_pass: str, **cell: Any) -> float | None:
    """Median time of a pass, ms."""
    return statistic(rows, "median", metric=timed_pass, **cell)
