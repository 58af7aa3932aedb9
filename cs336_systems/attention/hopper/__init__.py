"""FlashAttention for Hopper (compute capability 9.0) in Gluon: warps that load, multiply or reduce, and nothing else."""
