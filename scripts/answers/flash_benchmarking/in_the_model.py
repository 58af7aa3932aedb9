"""The training step with each attention, for `flash_benchmarking`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from scripts.rendering.markup import Table, fixed_point
from scripts.views.data import one, ratio, select
from scripts.views.spread import legend, mark
from scripts.views.steps import steady, step_table
from scripts.views.units import GIB

SAME = ("size", "context", "precision", "compiled")
Cell = Mapping[str, Any]
"""Steps (Series or None) by attention: plain, sdpa, flash."""


def model_answers(table: DataFrame) -> dict[str, Any]:
    """The training step with plain attention, SDPA and ours, of each model that was measured with ours."""
    steps = select(steady(step_table(table)), mode="train_step")
    cells: list[Cell] = [with_each_attention(steps, cell) for _, cell in select(steps, attention="flash").iterrows()]
    gains = [
        (gain, str(cell["flash"]["label"]), int(cell["flash"]["context"]))
        for cell in cells
        if (gain := gain_over(cell, "plain"))
    ]
    shown = model_table(cells) if cells else None
    return {
        "model": shown,
        "model_marks": legend(shown),
        "model_gain": max(gains, default=None),
        "model_against": [found for host_bound in (False, True) if (found := against_sdpa(cells, host_bound))],
    }


def with_each_attention(steps: DataFrame, ours: Series) -> Cell:
    """The steps that differ from one with our attention in the attention only."""
    wanted = {name: ours[name] for name in SAME}
    return {name: one(steps, attention=name, **wanted) for name in ("plain", "sdpa", "flash")}


def gain_over(cell: Cell, other: str, time: str = "step") -> float | None:
    """Time of the step with another attention over that with ours."""
    return None if cell[other] is None else ratio(cell[other][time], cell["flash"][time])


def name_of(step: Series) -> str:
    """A step's model, as text and table name it."""
    return f"{step['label']} (compiled)" if step["compiled"] else str(step["label"])


def against_sdpa(cells: Sequence[Cell], host_bound: bool) -> dict[str, Any] | None:
    """Time of a step with SDPA over that with ours, of whole steps and of the device's part of them, least and most.

    Those steps in which the host sets the pace, of either, or those in which the device sets that of both.
    """
    pairs = [cell for cell in cells if cell["sdpa"] is not None and host_sets_pace(cell) == host_bound]
    device = [gain for cell in pairs if (gain := gain_over(cell, "sdpa", "device_busy"))]
    if not device:
        return None
    whole = [gain for cell in pairs if (gain := gain_over(cell, "sdpa"))]
    return {
        "names": [name_of(cell["flash"]) for cell in pairs],
        "whole": (min(whole), max(whole)),
        "device": (min(device), max(device)),
        "host_bound": host_bound,
    }


def host_sets_pace(cell: Cell) -> bool:
    """Whether the host sets the pace of the step with ours, or of that with SDPA."""
    return bool(cell["flash"]["host_bound"] or cell["sdpa"]["host_bound"])


def model_table(cells: Sequence[Cell]) -> Table:
    """One line per model."""
    body = []
    for cell in cells:
        ours = cell["flash"]
        line = [name_of(ours), str(ours["context"]), ours["precision"]]
        line += ["–" if step is None else f"{step['step']:.1f}{mark(step)}" for step in cell.values()]
        line += [fixed_point(gain_over(cell, other), 2, "×") for other in ("plain", "sdpa")]
        line += [fixed_point(100 * step["busy"] if step is not None else None, 0) for step in (cell["sdpa"], ours)]
        peaks = (None if step is None else step["peak_memory"] * MIB / GIB for step in (cell["plain"], ours))
        line += map(fixed_point, peaks)
        body.append(line)
    header = ["model", "context", "precision", "plain", "SDPA", "ours"]
    header += ["plain / ours", "SDPA / ours", "SDPA", "ours", "plain", "ours"]
    groups = [("", 3), ("training step / ms", 3), ("", 2), ("device busy / %", 2), ("peak / GiB", 2)]
    return Table(header, body, text_columns=1, groups=groups)
