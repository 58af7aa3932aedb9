"""Training configurations that `fit` compares: settings of one question, in the order in which one would try them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cs336_systems.accounting.peak_memory import peak, with_fewest_recomputed
from cs336_systems.accounting.setting import Scheme, Setting
from cs336_systems.fit.parameters import Question

SCHEMES: Mapping[Scheme, str] = {
    "data parallel": "data parallel",
    "sharded optimizer": "ZeRO-1",
    "ZeRO-2": "ZeRO-2",
    "FSDP": "FSDP",
}
"""Sharding schemes of a model's state, and their names."""


def strategies(question: Question, capacity: float) -> Iterator[tuple[str, Setting]]:
    """Each training configuration and its name.

    `capacity`: bytes that a rank may use; fused steps recompute as few blocks as it allows.
    """
    base = Setting.of(vars(question) | {"size": question.shape_name, "vocab_size": question.vocabulary})
    segment = max(1, round(math.sqrt(base.shape.num_layers)))
    passes: dict[str, dict[str, Any]] = {
        "plain": {},
        f"checkpointed, segments of {segment}": {"segment": segment},
    }
    several: dict[str, Any] = {"ranks": question.gpus, "scheme": "data parallel"}
    if question.gpus == 1:
        for name, options in passes.items():
            yield name, replace(base, **options)
        yield "compiled", replace(base, passes="compiled")
    else:
        for scheme, title in SCHEMES.items():
            for name, options in passes.items():
                yield f"{title}, {name}", replace(base, **several | {"scheme": scheme}, **options)
    if question.precision == "bf16":
        yield from fused(replace(base, precision="bf16", attention="flash", passes="fused"), question.gpus, capacity)


def fused(base: Setting, gpus: int, capacity: float) -> Iterator[tuple[str, Setting]]:
    """The training ladder's last rung, or the leaderboard's step; with recomputed blocks if necessary."""
    title = "bf16 weights, fused"
    whole = replace(base, graph=True, overlap=True)
    if gpus > 1:
        title = "bf16 weights, fused, ZeRO-2"
        whole = replace(base, overlap=True, keep_hidden=False, ranks=gpus, scheme="ZeRO-2")
    yield title, whole
    if peak(whole).total <= capacity:
        return
    fewest = with_fewest_recomputed(replace(whole, graph=False, keep_hidden=False), capacity, least=1)
    yield f"{title}, {fewest.recomputed} of {base.shape.num_layers} blocks recomputed", fewest
