"""Train a language model with interleaved sharded optimizers, and measure memory and time.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.optimizer_sharding --precision bf16
"""

from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding

if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main

    main(OptimizerSharding, measure)
