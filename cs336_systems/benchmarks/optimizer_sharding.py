"""Train a language model with interleaved sharded optimizers, and measure memory and time.

Launch: torchrun --standalone --nproc-per-node=2 -m cs336_systems.benchmarks.optimizer_sharding --precision bf16
"""

from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding

if __name__ == "__main__":
    from cs336_systems.benchmarks.command_line import main
    from cs336_systems.model import load_model_class
    from cs336_systems.model_check import check_model

    main(OptimizerSharding, measure, check=lambda cell: check_model(cell.model, load=load_model_class))
