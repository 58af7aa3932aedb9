"""The closed forms that belong to a row of a table."""

from pandas import DataFrame, Series

from cs336_systems.accounting.activations import BlockActivations
from cs336_systems.accounting.checkpointing import StepMemory
from cs336_systems.accounting.units import MIB
from cs336_systems.sizes import parse_size
from scripts.data import select, size_order

FLASH = "FlashAttention"
"""What a reader calls the operator without a name: a function of this project, none of PyTorch's."""


def block_of(row: Series) -> BlockActivations:
    """What a block makes of a row's batch."""
    return BlockActivations(
        shape=parse_size(row["size"]),
        batch_size=int(row["batch_size"]),
        context=int(row["context"]),
        precision=row["precision"],
        attention=row["attention"],
        on_gpu=bool(row["gpu"]),
    )


def step_of(row: Series) -> StepMemory:
    """The memory of a row's training step."""
    return StepMemory(block=block_of(row), vocab_size=int(row["vocab_size"]), segment=int(row["segment"]))


def saved_mib(row: Series) -> dict[tuple[str, str, str], float]:
    """MiB that a block saves, by what `block_memory` tells its rows apart by."""
    found: dict[tuple[str, str, str], float] = {}
    for tensor in block_of(row).saved():
        key = (tensor.range, tensor.operator, tensor.tensor)
        found[key] = found.get(key, 0) + tensor.bytes / MIB
    return found


def one_model(table: DataFrame) -> DataFrame:
    """The rows of the largest model at its longest context, in the precision that most of them have."""
    if not len(table):
        return table
    table = select(table, size=size_order(table)[-1])
    table = select(table, context=table["context"].max())
    return select(table, precision=table["precision"].mode().iloc[0])
