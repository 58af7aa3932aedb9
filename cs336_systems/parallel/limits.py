"""How much is gathered ahead, kept in flight and padded: closed forms, which import no PyTorch, count with it."""

AHEAD = 2
"""Units, layers or blocks, that are gathered before it is their turn: none is gathered any earlier."""
REDUCTIONS = 2
"""Units whose gradients may still be on their way when those of another one are complete."""
ALIGNMENT = 256
"""Bytes at whose multiples parameters begin, as those that CUDA allocates do: matrix products choose their kernel by
it, and another kernel rounds differently."""
EVEN = 1.05
"""A collective needs as much of each rank. So much more than the numbers there are may be padding."""
PATIENCE = 4
"""A full bucket waits for more parameters until ranks own nearly equal parts, up to so many times its size per rank."""
