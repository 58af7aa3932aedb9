"""Compilation of a model block by block."""

from typing import Any

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model, in order; a ValueError if it has none."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        name = type(model).__qualname__
        raise ValueError(f"{name} has no `blocks`; allowed: models with a ModuleList or a Sequential of that name")
    return list(blocks)


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compile each block of a model separately, in place; call it before wrapping the model.

    Identical blocks are compiled once. The gradients of a block are ready when its own backward pass ends, so that a
    wrapper can send them while others are computed; in a model that is compiled as a whole all are ready at the end.
    Names of parameters and state dicts stay as they are.

    Args:
        model: has its blocks in a ModuleList or a Sequential named `blocks`. Pass the wrapped module, not the wrapper.
        options: passed to torch.compile.

    Raises:
        ValueError: the model has no `blocks`, or a block is compiled already.
    """
    blocks = blocks_of(model)
    for number, block in enumerate(blocks):
        if block._compiled_call_impl is not None or hasattr(block, "_orig_mod"):
            raise ValueError(f"block {number} is already compiled")
    for block in dict.fromkeys(blocks):
        block.compile(**options)
