"""The kernels of a block's forward pass against the device's peak rate and bandwidth."""

from collections.abc import Callable

from pandas import DataFrame, Series

from cs336_systems.accounting.block_work import plain_block
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.sizes import parse_size
from scripts.views.data import measured_gpu
from scripts.views.kernels import FORWARD, kernels


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
    "softmax": _launched_in("softmax", category="softmax"),
    "mask and cast": lambda rows: (rows["range"] == "softmax") & (rows["category"] != "softmax"),
    "norms": _launched_in("blocks.attention_norm", "blocks.feed_forward_norm", category="normalization"),
    "SiLU and product": _launched_in("blocks.feed_forward", category="elementwise"),
    "residual additions": _launched_in("blocks", category="elementwise"),
}
"""The kinds of kernels of a forward pass."""


def block_kernels(close: DataFrame) -> DataFrame:
    """One row per precision and kind of kernel in the forward pass of a profiled model.

    Columns: `seconds` in one block; `flops` per second and per byte (`intensity`); the shares of the data sheet's rates
    that it reaches, `of_peak` and `of_bandwidth`; `memory`, whether bandwidth is its roof. No rows without data sheet.
    """
    gpu, lines = gpu_of(measured_gpu({"": close})), []
    for precision, rows in kernels(close, FORWARD, mode="inference").groupby("precision"):
        cell = rows.iloc[0]
        shape, peak = parse_size(cell["size"]), gpu.flops(str(precision)) if gpu else 0.0
        for kind, work in plain_block(shape, int(cell["batch_size"]), int(cell["context"]), str(precision)).items():
            seconds = rows.loc[WHERE[kind](rows), "ms"].sum() / 1e3 / shape.num_layers
            if gpu and seconds:
                line = {"precision": precision, "kind": kind, "seconds": seconds, "intensity": work.intensity}
                line |= {"flops": work.flops / seconds, "of_peak": work.flops / seconds / peak}
                line |= {"of_bandwidth": work.bytes / seconds / gpu.bandwidth}
                lines.append(line | {"memory": work.intensity < peak / gpu.bandwidth})
    names = ["precision", "kind", "seconds", "intensity", "flops", "of_peak", "of_bandwidth", "memory"]
    return DataFrame(lines, columns=names)
