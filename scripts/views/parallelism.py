"""The closed forms of parallelism in numbers: the handout's mesh, and an example of a layer."""

import math
from typing import Any

from cs336_systems.accounting.accelerators import TPU_V5P
from cs336_systems.accounting.mesh import Mesh
from cs336_systems.accounting.parallelism import FeedForward, Parallel
from cs336_systems.accounting.xxl import XXL

MESH = Mesh(d_model=XXL.d_model, d_ff=XXL.d_ff, device=TPU_V5P, fsdp=16, tensor=4, fsdp_axes=2, tensor_axes=1)
"""That of `communication_accounting`."""
EXAMPLE = Parallel(FeedForward(tokens=2**22, d_model=XXL.d_model, d_ff=XXL.d_ff), TPU_V5P)
"""A SwiGLU of XXL's widths on the same accelerator, where the handout's 2026 edition names no sizes."""


def example_answers() -> dict[str, Any]:
    """The layer, the accelerator, and the most devices of each strategy, rounded down."""
    return {
        "layer": EXAMPLE.layer,
        "device": EXAMPLE.device,
        "batch_limit": math.floor(EXAMPLE.batch_limit),
        "tensor_forward_limit": math.floor(EXAMPLE.tensor_forward_limit),
        "tensor_backward_limit": math.floor(EXAMPLE.tensor_backward_limit),
    }
