"""FP8 formats, and bounds of scales."""

import torch

CAPABILITY = (8, 9)
"""The lowest compute capability with FP8 matmuls."""
E4M3 = torch.float8_e4m3fn
"""Format of values and weights: 3 bits of mantissa, up to 448."""
E5M2 = torch.float8_e5m2
"""Default format of gradients: 2 bits of mantissa, up to 57 344."""
SMALLEST_AMAX = 1e-12
"""A tensor's largest element counts as at least this, so that a tensor of zeros has a scale."""
HEADROOM = 2.0
"""With delayed scaling, how much larger an element may be than the last step's largest; beyond it, it is clamped."""
