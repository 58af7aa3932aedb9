"""What fully sharded data parallelism keeps in memory to hide its communication; closed forms count with it."""

AHEAD = 2
"""Units, layers or blocks, that are gathered before it is their turn: none is gathered any earlier."""
REDUCTIONS = 2
"""Units whose gradients may still be on their way when those of another one are complete."""
