"""The longest context at which each model size trains within a GPU's memory, by closed forms."""

from collections.abc import Iterator, Mapping
from typing import Any

from pandas import DataFrame

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_time import step_seconds
from cs336_systems.accounting.units import MIB
from cs336_systems.fit.gpus import rates_of
from cs336_systems.fit.recorded import recorded
from cs336_systems.fit.verdict import outcome, outside
from cs336_systems.sizes import SIZES

BATCH, VOCABULARY = 4, 10_000
"""Sequences of a step, and rows of the embedding: the handout's."""
CONTEXTS = [2**power for power in range(7, 17)]
NAMES = list(SIZES)[list(SIZES).index("small") :]
"""The handout's sizes."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"attention": "plain"},
    "flash": {"attention": "flash"},
    "blocks recomputed": {"attention": "flash", "segment": 1},
}
"""Ways to train with bf16 autocast: with attention that keeps the scores or not, and with blocks that keep only their
input."""


def longest_contexts(gpu: str, capacity: float) -> DataFrame:
    """One row per size, small to large, with its `label` and, prefixed by the name of each of WAYS, its longest step.

    Args:
        gpu: the model, by the driver's name.
        capacity: bytes of its memory.

    Returns:
        `context`, the longest of CONTEXTS at which a step fits; `memory` of that step with what is outside PyTorch's
        allocator, MiB; and its `seconds`. Missing where none fits; `seconds` also where the GPU's rates are unknown.
    """
    return DataFrame(
        {"label": size} | {f"{way} {name}": value for way in WAYS for name, value in _longest(size, way, gpu, capacity)}
        for size in NAMES
    ).reindex(columns=["label", *(f"{way} {name}" for way in WAYS for name in ("context", "memory", "seconds"))])


def _longest(size: str, way: str, gpu: str, capacity: float) -> Iterator[tuple[str, float]]:
    """One size and one way to train in `longest_contexts`."""
    parameters = {"size": size, "vocab_size": VOCABULARY, "batch_size": BATCH, "precision": "bf16", **WAYS[way]}
    steps = [Setting.of({**parameters, "context": context}) for context in CONTEXTS]
    fitting = [step for step in steps if outcome(step, capacity) == "fits"]
    if not fitting:
        return
    yield "context", fitting[-1].context
    yield "memory", (peak(fitting[-1]).total + outside(fitting[-1].ranks)) / MIB
    if rates := rates_of(gpu):
        yield "seconds", step_seconds(fitting[-1], rates, recorded().weights)
