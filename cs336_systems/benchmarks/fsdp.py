"""Train a language model with replicated state and with several sharding schemes, interleaved.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks fsdp --size xl --precision bf16 --rounds 1
"""

from cs336_systems.benchmarks.comparison.measure import measure

__all__ = ["measure"]
