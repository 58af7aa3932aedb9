"""The closed forms of parallelism in numbers: the handout's mesh, and an example of a layer."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cs336_systems.accounting.accelerators import TPU_V5P
from cs336_systems.accounting.mesh import Mesh
from cs336_systems.accounting.parallelism import FeedForward, Parallel
from cs336_systems.accounting.xxl import XXL
from scripts.rendering.answer import Answer, Answers, Captioned, Tables, say
from scripts.rendering.markup import Table, Typst, finalize

MESH = Mesh(d_model=XXL.d_model, d_ff=XXL.d_ff, device=TPU_V5P, fsdp=16, tensor=4, fsdp_axes=2, tensor_axes=1)
"""The mesh of `communication_accounting`."""
EXAMPLE = Parallel(FeedForward(tokens=2**22, d_model=XXL.d_model, d_ff=XXL.d_ff), TPU_V5P)
"""A SwiGLU with XXL's widths on the same accelerator, since the handout's 2026 edition gives no sizes."""


def limits(
    verdict: str, more: str, results: Captioned | Sequence[Captioned] = (), **facts: Any
) -> Callable[[Tables], Answers]:
    """The answers of a section about one strategy: its formulas, and its limit in the example.

    Sentences can name the `facts`, and the maximum number of devices of each strategy, rounded down.
    """
    names = ("batch_limit", "tensor_forward_limit", "tensor_backward_limit")
    facts |= {name: math.floor(getattr(EXAMPLE, name)) for name in names}
    answer = Answer("FLOPs, time, limit", say(verdict, **facts), say(more, **facts), results)
    return lambda tables: {"layer": EXAMPLE.layer, "device": EXAMPLE.device, "limit": answer}


def closed_forms(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str,
    *,
    text_columns: int = 2,
    groups: Sequence[tuple[str, int]] = (),
) -> Captioned:
    """A table whose cells are words, formulas between dollar signs, or numbers."""
    body = [[_cell(value) for value in row] for row in rows]
    return Captioned(Table(list(head), body, text_columns, list(groups)), caption, closed_form=True)


def _cell(value: object) -> str:
    if isinstance(value, str):
        return Typst(value) if value.startswith("$") else value
    return finalize(value)
