"""Closed forms for a row of a table."""

from typing import Any

from pandas import Series

from cs336_systems.accounting.activations import BlockActivations, Saved
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.transformer import adamw_bytes, parameters, step_flops, weight_copy_bytes
from cs336_systems.accounting.units import FP32_BYTES
from cs336_systems.measure import memory_timeline as of
from cs336_systems.sizes import ModelShape, parse_size
from scripts.views.cells import cell_of, declared

FLASH = "FlashAttention"
"""The name for a function of this project, which is not one of PyTorch's operators."""


def step_of(row: Series) -> Setting:
    """The training step of a row, unsharded."""
    return Setting.of(row, on_gpu=bool(row["gpu"]))


def contender_step(kind: Any, row: Series) -> Setting:
    """The training step of a row of contenders that train on several ranks; its contender is a declared one."""
    contender = declared(kind, row)
    assert contender, f"{row['contender']} is not declared"
    return contender.setting(cell_of(kind, row), on_gpu=bool(row["gpu"]))


def block_of(row: Series) -> BlockActivations:
    """The activations of a block for a row's batch."""
    return step_of(row).block


def model_of(row: Series) -> tuple[ModelShape, int]:
    """The shape and the vocabulary of a row's model."""
    return parse_size(row["size"]), int(row["vocab_size"])


def sized(row: Series) -> str:
    """A model with its real number of parameters, as in "2.7B (3.4 billion parameters)"."""
    weights = parameters(*model_of(row))
    return f"{row['label']} ({weights / 1e9:.1f} billion parameters)" if weights > 1e9 else str(row["label"])


def flops_of(row: Series, mode: str = "train_step", *, causal: bool = False) -> int:
    """Count the FLOPs of the matmuls in a step of a row's model and batch; if `causal`, with half of the scores."""
    return step_flops(mode, *model_of(row), int(row["batch_size"]), int(row["context"]), causal=causal)


def held_by_training(row: Series) -> dict[str, int]:
    """Bytes by category that a training step of a row's model holds at some time, except activations.

    The copies of weights are made by autocast.
    """
    weights = FP32_BYTES * parameters(*model_of(row))
    return {
        of.PARAMETERS: weights,
        of.GRADIENTS: weights,
        of.OPTIMIZER_STATE: adamw_bytes(*model_of(row)),
        of.WEIGHT_COPIES: weight_copy_bytes(*model_of(row)),
    }


def saved_by(row: Series) -> dict[tuple[str, ...], list[Saved]]:
    """The tensors that a block saves, by the columns that distinguish the rows of `block_memory`."""
    tensors: dict[tuple[str, ...], list[Saved]] = {}
    for tensor in block_of(row).saved():
        tensors.setdefault((tensor.range, tensor.operator, tensor.tensor), []).append(tensor)
    return tensors
