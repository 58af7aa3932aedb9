"""Limits on prefetching, communication in flight and padding; without PyTorch, since closed forms use them."""

AHEAD = 2
"""How many units (layers or blocks) ahead of use weights are gathered."""
REDUCTIONS = 2
"""How many units' reductions may be in flight when the gradients of another unit are complete."""
ALIGNMENT = 256
"""Alignment of parameters in bytes, as in CUDA's allocations: matmuls choose their kernel by it, and another kernel
rounds differently."""
EVEN = 1.05
"""Largest size of a padded bucket relative to its contents: a collective needs equal parts from each rank."""
PATIENCE = 4
"""A full bucket waits for more parameters until ranks own nearly equal parts, up to this multiple of its size."""
