"""Time the attention kernels with one design decision reverted at a time.

Launch: python -m cs336_systems.benchmarks flash_ablation --d 64 128 --without nothing descriptors preprocess
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.options import Options
from cs336_systems.attention.tile_config import BackwardTiles, ForwardTiles
from cs336_systems.benchmarks.comparison.exact_attention import require_close
from cs336_systems.benchmarks.runner import require_kernels, rows_or_reason
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.measure.dtypes import DTYPES
from cs336_systems.measure.memory import Unavailable
from cs336_systems.record.measurement import Measurement, skipped, summarize

Results = Mapping[str, Tensor]
PRECISIONS = {"bf16x6": "tf32x3", "matrix_units": "ieee"}
"""Precision of the matmuls, by reverted decision."""


def measure(cell: FlashAblation, device: torch.device) -> list[Measurement]:
    """Measure times of each pass's kernels, or report that the pass does not make this decision here."""
    if device.type != "cuda":
        raise Unavailable("the Triton kernels need a CUDA device")
    require_kernels(device)
    from cs336_systems.attention.triton_launch import attention_backward, attention_forward, default_tiles

    q, k, v, grad_o = inputs = make_inputs(cell, device)
    causal = Options(is_causal=True)
    grad_of_sum = torch.ones((), dtype=q.dtype, device=device).expand(q.shape)  # as autograd creates it
    o, lse = attention_forward(q, k, v, causal)
    default_forward, default_backward = default_tiles(q.get_device(), q.dtype, q.shape)

    def forward(tiles: ForwardTiles, precision: str | None) -> Results:
        return {"output": attention_forward(q, k, v, causal, tiles=tiles, precision=precision)[0]}

    def backward_of(grad: Tensor, tiles: BackwardTiles, precision: str | None) -> Results:
        gradients = attention_backward(grad, q, k, v, o, lse, None, causal, tiles=tiles, precision=precision)
        return dict(zip(("dq", "dk", "dv"), gradients, strict=True))

    backward = functools.partial(backward_of, grad_o)
    backward_of_sum = functools.partial(backward_of, grad_of_sum)
    backward_changed = backward_without(cell.without, default_backward)
    passes: dict[str, tuple[Any, ...]] = {
        "forward": (inputs, forward, default_forward, forward_without(cell.without, default_forward)),
        "backward": (inputs, backward, default_backward, backward_changed),
        "backward_of_sum": ([q, k, v, grad_of_sum], backward_of_sum, default_backward, backward_changed),
    }
    rows: list[Measurement] = []
    for phase, arguments in passes.items():  # If a pass's changed tiles do not fit the GPU, only that pass is lost.
        rows += rows_or_reason(functools.partial(_time, phase, cell, *arguments), phase, "ms")
    return rows


def make_inputs(cell: FlashAblation, device: torch.device) -> list[Tensor]:
    """Draw random q, k, v and gradient of the output, [1, heads, sequence, d] each."""
    shape = (1, cell.heads, cell.sequence, cell.d)
    return [torch.randn(shape, dtype=DTYPES[cell.precision], device=device) for _ in range(4)]


def forward_without(decision: str, default: ForwardTiles) -> ForwardTiles:
    """Revert one decision of the default forward tiles; unchanged if they do not use it."""
    changes: dict[str, dict[str, Any]] = {
        "descriptors": {"descriptors": False},
        "register_limit": {"maxnreg": None},
        "stage": {"num_stages": max(1, default.num_stages - 1)},
        "block_outer": {"block_m": default.block_m // 2},
        "block_inner": {"block_n": default.block_n // 2},
    }
    return dataclasses.replace(default, **changes.get(decision, {}))


def backward_without(decision: str, default: BackwardTiles) -> BackwardTiles:
    """Revert one decision of the default backward tiles, with descriptors if they depend on it."""
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
    inputs: Sequence[Tensor],
    call: Callable[[Any, str | None], Results],
    default: ForwardTiles | BackwardTiles,
    tiles: ForwardTiles | BackwardTiles,
) -> list[Measurement]:
    """Time a pass, after comparing its results with float64."""
    from triton.testing import do_bench

    if cell.without in PRECISIONS:
        if cell.precision != "fp32":
            return [skipped(phase, "ms", "a bf16 matmul takes one matmul")]
    elif cell.without != "nothing" and tiles == default:
        return [skipped(phase, "ms", "this pass does not use it here")]
    precision = PRECISIONS.get(cell.without)
    require_close(call(tiles, precision), inputs, is_causal=True)
    laps = do_bench(lambda: call(tiles, precision), warmup=25, rep=cell.rep, return_mode="all")
    return [summarize(phase, "ms", laps)]
