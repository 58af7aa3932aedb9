"""Limits on prefetching, communication in flight and padding; without PyTorch, since closed forms use them."""

AHEAD = 2
"""Number of units (layers or blocks) by which weights are gathered ahead of use."""
REDUCTIONS = 2
"""Maximum number of units' reductions in flight when another unit's gradients are complete."""
ALIGNMENT = 256
"""Alignment of parameters in bytes, as in CUDA's allocations: matmuls choose their kernel by alignment, and another
kernel rounds differently."""
EVEN = 1.05
"""Largest size of a padded bucket relative to its contents: a collective needs equal parts from each rank."""
PATIENCE = 4
"""A full bucket waits for more parameters until ranks own nearly equal parts, up to this multiple of its size."""
