"""The closed forms of sharded training, and its profiled forward pass, for figures, answers and checks."""

from pandas import DataFrame, Series

from cs336_systems.accounting.fsdp import FullySharded
from cs336_systems.accounting.peak_memory import fully_sharded
from cs336_systems.accounting.transformer import parameters as numbers_of
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.experiments.fsdp import CONTENDERS, FullyShardedTraining
from cs336_systems.sizes import parse_size
from scripts.views.closed_forms import contender_step, model_of
from scripts.views.comparison import series

DECLARED = {each.name: each for each in CONTENDERS}
SHARDED = [name for name, declared in DECLARED.items() if declared.scheme == "FSDP"]
OURS = [name for name in SHARDED if DECLARED[name].in_verdicts]
PYTORCH = [name for name in SHARDED if DECLARED[name].foreign]
SERIES = ["gather_begins", "gather_ends", "needed", "begins"]


def forward_pass(table: DataFrame, row: Series) -> DataFrame:
    """The times of each unit in a contender's profiled forward pass, ms; no rows unless all times of every unit are
    known.
    """
    times = {metric: series(FullyShardedTraining, table, row, metric) for metric in SERIES}
    whole = len({len(samples) for samples in times.values()}) == 1
    return DataFrame(times if whole else {}, columns=SERIES)


def by_block(table: DataFrame, row: Series) -> DataFrame:
    """A contender's profiled forward pass by block, ms: no rows unless it is known.

    Columns: `lead`, how early the latest weights arrive before the device is ready for them; `late`, how long it waits
    for weights that arrive later; `pause`, the time until computation begins, for any reason. The index is the block: 0
    is the embedding, the one after the last is the head. A unit is a layer or a block.
    """
    units = forward_pass(table, row)
    layers = parse_size(row["size"]).num_layers
    each = max(1, (len(units) - 2) // layers)
    blocks = [0 if place == 0 else min(1 + (place - 1) // each, layers + 1) for place in range(len(units))]
    lead = units["needed"] - units["gather_ends"]
    times = DataFrame({"lead": lead, "late": (-lead).clip(lower=0), "pause": units["begins"] - units["needed"]})
    return times.groupby(blocks).agg({"lead": "min", "late": "sum", "pause": "sum"})


def sharded(row: Series) -> FullySharded:
    """How a row's model is sharded."""
    return fully_sharded(contender_step(FullyShardedTraining, row))


def whole_weights(row: Series) -> int:
    """Bytes of all weights in fp32."""
    return FP32_BYTES * numbers_of(*model_of(row))
