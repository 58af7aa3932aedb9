"""The example that puts the closed forms of parallelism into numbers."""

import math
from typing import Any

from scripts.views.parallelism import EXAMPLE


def example_answers() -> dict[str, Any]:
    """The layer, the accelerator, and the most devices of each strategy, rounded down."""
    return {
        "layer": EXAMPLE.layer,
        "device": EXAMPLE.device,
        "batch_limit": math.floor(EXAMPLE.batch_limit),
        "tensor_forward_limit": math.floor(EXAMPLE.tensor_forward_limit),
        "tensor_backward_limit": math.floor(EXAMPLE.tensor_backward_limit),
    }
