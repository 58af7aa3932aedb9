"""Answers to `flash_forward`: how the kernels compute, and the cost of fp32; no measurement."""

from cs336_systems.measure.gpus import gpu_of
from scripts.rendering.answer import Answer, Answers, Tables, say
from scripts.views.data import measured_gpu

PRODUCTS = 6
"""Number of bf16 matmuls for one in fp32."""


def answers(tables: Tables) -> Answers:
    """The section's answers, which hold on every machine."""
    peak = gpu_of(measured_gpu(tables))
    time = PRODUCTS * peak.fp32 / peak.bf16 if peak and peak.bf16 > peak.fp32 else None
    return {
        "tiled": Answer(
            "(a) In PyTorch",
            "An `autograd.Function` computes attention tile by tile, with an online softmax.",
            "It saves _Q_, _K_, _V_, _O_ and the log-sum-exp _L_ of each row of scores. The forward pass holds one "
            "tile of each head's scores at a time.",
        ),
        "fused": Answer(
            "(b) As one Triton kernel",
            "One Triton kernel runs one program per head and tile of queries, with fp32 accumulators.",
        ),
        "causal": Answer(
            "(c) Causal mask", "Tiles above the diagonal are skipped; only tiles on the diagonal are masked."
        ),
        "gain": say("; at peak rates, the six take {time:percent} of the time of one fp32 matmul", time=time),
        "hopper": measured_gpu(tables) != "",
    }
