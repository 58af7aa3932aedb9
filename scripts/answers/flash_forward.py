"""Answers to `flash_forward`: how the kernels compute, and the cost of fp32; no measurement."""

from scripts.rendering.answer import Answer, Facts, Found, Tables
from scripts.views.attention_calls import gain_of_products
from scripts.views.data import measured_gpu


def answers(tables: Tables) -> Found:
    """The section's answers, which hold on every machine."""
    facts = Facts(ratio=gain_of_products(measured_gpu(tables)))
    return {
        "tiled": Answer(
            "(a) In PyTorch",
            "An `autograd.Function` computes attention tile by tile, with an online softmax.",
            "It saves _L_, _Q_, _K_, _V_ and _O_, and never holds more than one tile of scores.",
        ),
        "fused": Answer(
            "(b) As one Triton kernel",
            "One Triton kernel does the same: one program per head and tile of queries, with fp32 accumulators.",
        ),
        "causal": Answer("(c) Causal", "Tiles of keys above the diagonal are skipped; only those on it are masked."),
        "gain": facts.say(" (peak rate {ratio:times} fp32’s)"),
        "hopper": measured_gpu(tables) != "",
    }
