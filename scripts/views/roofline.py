"""The kernels of a block's forward pass against the device's peak rate and bandwidth."""

from collections.abc import Callable
from dataclasses import dataclass

from pandas import DataFrame, Series

from cs336_systems.accounting.block_work import Work, flash_attention, plain_block
from cs336_systems.sizes import parse_size
from scripts.views.data import select
from scripts.views.kernels import FORWARD, kernels

FLASH = "FlashAttention"
SOFTMAX_RANGE = "softmax"


def _launched_in(*ranges: str, category: str) -> Callable[[DataFrame], Series]:
    return lambda rows: rows["range"].isin(ranges) & (rows["category"] == category)


WHERE = {
    "projections": _launched_in(
        *(f"blocks.attention.{name}" for name in ("query", "key", "value", "output")), category="matmul"
    ),
    "SwiGLU matmuls": _launched_in(
        *(f"blocks.feed_forward.{name}" for name in ("gate", "up", "down")), category="matmul"
    ),
    "attention matmuls": _launched_in("scores", "final product", category="matmul"),
    "softmax": _launched_in(SOFTMAX_RANGE, category="softmax"),
    "mask and cast": lambda rows: (rows["range"] == SOFTMAX_RANGE) & (rows["category"] != "softmax"),
    "norms": _launched_in("blocks.attention_norm", "blocks.feed_forward_norm", category="normalization"),
    "SiLU and product": _launched_in("blocks.feed_forward", category="elementwise"),
    "residual additions": _launched_in("blocks", category="elementwise"),
    FLASH: lambda rows: rows["category"] == "attention",
}
"""The kinds of kernels of a forward pass."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of one kind in the forward pass of a model."""

    kind: str
    work: Work
    """Of one block."""
    seconds: float
    """In one block."""

    @property
    def flops(self) -> float:
        """FLOP/s."""
        return self.work.flops / self.seconds

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.work.bytes / self.seconds


def block_kernels(cell: DataFrame) -> list[Kernels]:
    """The kernels that one cell's forward pass launches, by kind, with plain or flash attention."""
    rows = kernels(cell, FORWARD, compiled=False, mode="inference")
    if not len(rows):
        return []
    first = rows.iloc[0]
    shape, batch, context = parse_size(first["size"]), int(first["batch_size"]), int(first["context"])
    work = (
        plain_block(shape, batch, context, first["precision"])
        if first["attention"] == "plain"
        else {FLASH: flash_attention(shape, batch, context, first["precision"])}
    )
    spent = {kind: rows[WHERE[kind](rows)]["ms"].sum() / 1e3 / shape.num_layers for kind in work}
    return [Kernels(kind, work[kind], seconds) for kind, seconds in spent.items() if seconds]


def fused_cell(table: DataFrame) -> DataFrame:
    """The largest profiled forward pass with this project's attention; no rows if none was profiled."""
    launched = select(kernels(table, FORWARD), attention="flash", compiled=False, mode="inference")
    return table.loc[launched.index[launched["context"] == launched["context"].max()]]
