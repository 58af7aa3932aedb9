"""Time the attention kernels with one design decision reverted at a time.

Launch: python -m cs336_systems.benchmarks.flash_ablation --d 64 128 --without nothing descriptors preprocess
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.tile_config import BackwardTiles, ForwardTiles
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.measure.measurement import Measurement, summarize
from cs336_systems.measure.memory import Unavailable

PRECISIONS = {"bf16x6": "tf32x3", "matrix_units": "ieee"}
"""Precision of the products, by what is reverted."""


def measure(cell: FlashAblation, device: torch.device) -> list[Measurement]:
    """Time of each pass's kernels, or that the pass does not make this decision here."""
    if device.type != "cuda":
        raise Unavailable("the Triton kernels need a CUDA device")
    from cs336_systems.attention.triton_launch import attention_backward, attention_forward, default_tiles

    dtype = DTYPES[cell.precision]
    shape = (1, cell.heads, cell.sequence, cell.d)
    q, k, v, grad_o = (torch.randn(shape, dtype=dtype, device=device) for _ in range(4))
    grad_of_sum = torch.ones((), dtype=dtype, device=device).expand(shape)  # as autograd makes it
    o, lse = attention_forward(q, k, v, True)
    default_forward, default_backward = default_tiles(dtype, q.shape)

    def forward(tiles: ForwardTiles, precision: str | None) -> tuple[Tensor, ...]:
        return attention_forward(q, k, v, True, tiles=tiles, precision=precision)

    def backward(tiles: BackwardTiles, precision: str | None) -> tuple[Tensor, ...]:
        return attention_backward(grad_o, q, k, v, o, lse, True, tiles=tiles, precision=precision)

    def backward_of_sum(tiles: BackwardTiles, precision: str | None) -> tuple[Tensor, ...]:
        return attention_backward(grad_of_sum, q, k, v, o, lse, True, tiles=tiles, precision=precision)

    backward_changed = backward_without(cell.without, default_backward)
    return [
        _time("forward", cell, forward, default_forward, forward_without(cell.without, default_forward)),
        _time("backward", cell, backward, default_backward, backward_changed),
        _time("backward_of_sum", cell, backward_of_sum, default_backward, backward_changed),
    ]


def forward_without(decision: str, default: ForwardTiles) -> ForwardTiles:
    """The default tiles with one decision reverted; unchanged if they do not make it."""
    changes: dict[str, dict[str, Any]] = {
        "descriptors": {"descriptors": False},
        "register_limit": {"maxnreg": None},
        "stage": {"num_stages": max(1, default.num_stages - 1)},
        "block_outer": {"block_m": default.block_m // 2},
        "block_inner": {"block_n": default.block_n // 2},
    }
    return dataclasses.replace(default, **changes.get(decision, {}))


def backward_without(decision: str, default: BackwardTiles) -> BackwardTiles:
    """As forward_without; descriptors go too where they need what is reverted."""
    changes: dict[str, dict[str, Any]] = {
        "descriptors": {"descriptors": False},
        "preprocess": {"preprocess": False, "descriptors": False},
        "register_limit": {"maxnreg": None},
        "stage": {"num_stages": max(1, default.num_stages - 1)},
        "block_outer": {"block_outer": default.block_outer // 2, "descriptors": False},
        "block_inner": {"block_inner": default.block_inner // 2, "descriptors": False},
    }
    return dataclasses.replace(default, **changes.get(decision, {}))


def _time(
    phase: str,
    cell: FlashAblation,
    call: Callable[[Any, str | None], tuple[Tensor, ...]],
    default: ForwardTiles | BackwardTiles,
    tiles: ForwardTiles | BackwardTiles,
) -> Measurement:
    """A pass's time, after checking that the changed kernels compute what the default ones do."""
    from triton.testing import do_bench

    if cell.without in PRECISIONS:
        if cell.precision != "fp32":
            return _skipped(phase, "products of bf16 numbers take one product")
    elif cell.without != "nothing" and tiles == default:
        return _skipped(phase, "not a decision of this pass here")
    precision = PRECISIONS.get(cell.without)
    for got, expected in zip(call(tiles, precision), call(default, None), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    return summarize(phase, "ms", do_bench(lambda: call(tiles, precision), warmup=25, rep=cell.rep, return_mode="all"))


def _skipped(phase: str, message: str) -> Measurement:
    return Measurement(metric=phase, unit="ms", status="skipped", message=message)


if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main

    main(FlashAblation, measure)
