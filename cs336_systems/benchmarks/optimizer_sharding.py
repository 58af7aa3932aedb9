"""Train a language model with interleaved sharded optimizers, and measure memory and time.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks optimizer_sharding --precision bf16
"""

from cs336_systems.benchmarks.comparison.measure import measure

__all__ = ["measure"]
