"""The training step with each attention, for `flash_benchmarking`."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from scripts.data import one, ratio, select
from scripts.markup import Table, fixed_point
from scripts.steps import steady, step_table

CELL = ("size", "context", "precision", "compiled")
GIB = 1024
"""MiB per GiB."""


def model_answers(table: DataFrame) -> dict[str, Any]:
    """The training step with plain attention, SDPA and ours, of each model that was measured with ours."""
    steps = select(steady(step_table(table)), mode="train_step")
    cells = [with_each_attention(steps, cell) for _, cell in select(steps, attention="flash").iterrows()]
    pairs = [cell for cell in cells if cell["sdpa"] is not None]
    gains = [
        (gain, str(cell["flash"]["label"]), int(cell["flash"]["context"]))
        for cell in cells
        if (gain := gain_over(cell, "plain"))
    ]
    against = [gain for cell in pairs if (gain := gain_over(cell, "sdpa"))]
    return {
        "model": model_table(cells) if cells else None,
        "model_gain": max(gains, default=None),
        "model_against": (min(against), max(against)) if against else None,
        "model_slower": [slower(cell) for cell in pairs if (gain_over(cell, "sdpa") or 1) < 1],
    }


def with_each_attention(steps: DataFrame, ours: Series) -> dict[str, Series | None]:
    """The steps that differ from one with our attention in the attention only."""
    wanted = {name: ours[name] for name in CELL}
    return {name: one(steps, attention=name, **wanted) for name in ("plain", "sdpa", "flash")}


def gain_over(cell: Mapping[str, Any], other: str) -> float | None:
    """Time of the step with another attention over that with ours."""
    return None if cell[other] is None else ratio(cell[other]["step"], cell["flash"]["step"])


def name_of(step: Series) -> str:
    """A step's model, as text and table name it."""
    return f"{step['label']}, compiled" if step["compiled"] else str(step["label"])


def slower(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A step that takes longer with ours than with SDPA, and who sets the pace of each."""
    ours, sdpa = cell["flash"], cell["sdpa"]
    return {
        "name": name_of(ours),
        "gain": gain_over(cell, "sdpa"),
        "busy": float(ours["busy"]),
        "sdpa_busy": float(sdpa["busy"]),
        "host_bound": bool(ours["host_bound"]),
        "device": ratio(ours["device_busy"], sdpa["device_busy"]),
    }


def model_table(cells: list[dict[str, Any]]) -> Table:
    """One line per model."""
    body = []
    for cell in cells:
        ours = cell["flash"]
        line = [name_of(ours), str(ours["context"]), ours["precision"]]
        line += [fixed_point(None if step is None else step["step"]) for step in cell.values()]
        line += [fixed_point(gain_over(cell, other), 2, "×") for other in ("plain", "sdpa")]
        line += [fixed_point(100 * step["busy"] if step is not None else None, 0) for step in (cell["sdpa"], ours)]
        line += [
            fixed_point(step["peak_memory"] / GIB if step is not None else None) for step in (cell["plain"], ours)
        ]
        body.append(line)
    header = ["model", "context", "precision", "plain", "SDPA", "ours"]
    header += ["plain / ours", "SDPA / ours", "SDPA", "ours", "plain", "ours"]
    groups = [("", 3), ("training step / ms", 3), ("", 2), ("device busy / %", 2), ("peak / GiB", 2)]
    return Table(header, body, text_columns=1, groups=groups)
