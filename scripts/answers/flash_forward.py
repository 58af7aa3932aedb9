"""Answers to `flash_forward`: how the kernels compute, and what their fp32 costs; no measurement."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import Answer, say
from scripts.rendering.markup import Typst
from scripts.views.data import measured_gpu

PRODUCTS = 6
"""bf16 products that make one in fp32."""


def answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The section's answers, which hold on every machine."""
    peak = gpu_of(measured_gpu(tables))
    return {
        "tiled": Answer(
            asked="(a) In PyTorch",
            verdict=Typst("An `autograd.Function` computes attention tile by tile, with an online softmax."),
            more=Typst("It saves _L_, _Q_, _K_, _V_ and _O_, and never holds more scores than one tile of them."),
            reason=Typst(
                "For each tile of queries, a loop over tiles of keys (`cs336_systems/attention/tiled.py`) keeps a "
                "running "
                "maximum _m_, a running sum _l_ and an unnormalized output; when _m_ rises, the sums so far are scaled "
                'by $e^(m_"old" - m_"new")$. At the end the output is divided by _l_, and $L = m + log l$, one fp32 '
                "number per query, is saved with the inputs and the output."
            ),
        ),
        "fused": Answer(
            asked="(b) As one Triton kernel",
            verdict=Typst(
                "One Triton kernel does the same: a program per head and tile of queries, fp32 accumulators."
            ),
            reason=say(
                "Each program has one loop over the tiles of keys (`cs336_systems/attention/triton_forward.py`). "
                "Exponentials are base 2, as in hardware, with $log_2 e \\/ sqrt(d)$ folded into the scale of the "
                "scores. "
                "Long sequences are loaded through tensor descriptors, short ones by pointers. fp32 inputs are split "
                "into "
                "three bf16 numbers each and multiplied as six bf16 products on the tensor cores{gain}, which keeps "
                "fp32’s accuracy.",
                gain=say(", whose peak rate for that is {ratio:times} fp32’s", ratio=peak.bf16 / PRODUCTS / peak.fp32)
                if peak and peak.bf16 > peak.fp32
                else Typst(" of a GPU"),
            ),
        ),
        "causal": Answer(
            asked="(c) Causal",
            verdict=Typst("Tiles of keys above the diagonal are skipped; only those on it are masked."),
            reason=Typst("Programs with the longest rows start first, so that no long one is left for the end."),
        ),
        "hopper": measured_gpu(tables) != "",
    }
