"""Train a language model with interleaved data-parallel wrappers, and time the communication that is added to a step.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks data_parallel --precision bf16 --rounds 1
"""

from cs336_systems.benchmarks.comparison.measure import measure

__all__ = ["measure"]
