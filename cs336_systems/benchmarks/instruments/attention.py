"""Causal attention, forward and backward, with every installed library."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from cs336_systems.benchmarks.comparison.attention_builders import build as build_attention
from cs336_systems.benchmarks.comparison.exact_attention import require_attention
from cs336_systems.benchmarks.flash import backend_of, make_inputs
from cs336_systems.benchmarks.instruments.work import Call, Work
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.flash import Flash

SHAPES = {
    # batch_size, heads, sequence and d: the small model's shape, many heads, and one long sequence.
    "cuda": ((8, 12, 1024, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)),
    "cpu": ((1, 4, 128, 32), (1, 4, 256, 64), (1, 4, 512, 64)),
}
LIBRARIES = {
    "cuda": ("triton", "sdpa_flash", "sdpa_cudnn", "flash_attention_4"),
    "cpu": ("plain", "sdpa_flash"),
}
CHECKED = 256
"""Length of the sequences whose results are compared with float64."""


def works(device: torch.device) -> Iterator[Work]:
    """Each library at each shape, in bf16 on a GPU and fp32 on a CPU."""
    precision = "bf16" if device.type == "cuda" else "fp32"
    for batch, heads, sequence, d in SHAPES[device.type]:
        for library in LIBRARIES[device.type]:
            shape = {"batch_size": batch, "heads": heads, "sequence": sequence, "d": d}
            cell = make_cell(Flash, {**shape, "precision": precision, "implementation": library})
            # Backward has 2.5 times as many FLOPs as forward, and a causal mask leaves half.
            flops = 3.5 * 4 * batch * heads * sequence**2 * d / 2
            yield Work(
                name=f"{cell.contender.title} {batch} x {heads} x {sequence} x {d}",
                metric="rate",
                amount=1e-12 * flops,
                build=partial(build, cell),
            )


def build(cell: Flash, device: torch.device) -> Call:
    """Compare a library's results on short sequences with float64, and return its forward and backward pass."""
    short = replace(cell, sequence=min(CHECKED, cell.sequence))
    call = build_attention(cell)
    with backend_of(cell.contender):
        require_attention(build_attention(short), make_inputs(short, device), is_causal=True, foreign=True)
    inputs = make_inputs(cell, device)
    grad_o = torch.randn_like(inputs[0], requires_grad=False)

    def forward_backward() -> None:
        with backend_of(cell.contender):
            torch.autograd.grad(call(*inputs), inputs, grad_o)

    return forward_backward
