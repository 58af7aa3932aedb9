"""Time and memory of cells that were measured before, by experiment and parameters as text. No torch here."""

import contextlib
import csv
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import SECONDS, timed
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WALL
from cs336_systems.record.rows import parameters

PEAK = "peak_memory"
Key = tuple[str, ...]


@dataclass(kw_only=True)
class Taken:
    """Time and memory of a cell on the GPU or processor that measured it."""

    wall: float = 0.0
    """Seconds; 0 if they are not known."""
    startup: float = 0.0
    """Seconds in which its job started; 0 if they are not known."""
    timed: list[tuple[int, float]] = field(default_factory=list)
    """The number of samples and the mean, in seconds, of each metric that took separate time."""
    peak: float = 0.0
    """Bytes; 0 if they were not measured."""


def key_of(cell: Experiment) -> Key:
    """The key of a cell in what `read_taken` returns."""
    return (cell.name, *(str(getattr(cell, name)) for name in parameters(type(cell))))


def read_taken(folders: Iterable[Path], experiments: Iterable[str] = tuple(EXPERIMENTS)) -> dict[Key, Taken]:
    """Read the cells in some folders of CSV files; the last folder with a cell decides its total time."""
    taken: dict[Key, Taken] = {}
    for raw, name in itertools.product(folders, experiments):
        for path in sorted((raw / name).glob("*.csv")):
            # A faulty file is reported when the report is made; here it is only ignored.
            unsound = contextlib.suppress(KeyError, TypeError, ValueError, csv.Error)
            with unsound, path.open(newline="", encoding="utf-8") as file:
                _add(taken, name, csv.DictReader(file))
    return taken


def _add(taken: dict[Key, Taken], experiment: str, lines: Iterable[dict[str, str]]) -> None:
    kind = EXPERIMENTS[experiment]
    names, of_time = parameters(kind), set(timed(kind))
    older = {key: str(value) for key, value in kind.added_later.items()}
    for line in lines:
        if line["status"] != "ok" or line["metric"] not in (WALL, PEAK, *of_time):
            continue
        values, mean = older | line, float(line["mean"])
        cell = taken.setdefault((experiment, *(values[name] for name in names)), Taken())
        if line["metric"] == WALL:
            cell.wall, cell.startup = mean, float(line["startup_seconds"])
        elif line["metric"] == PEAK:
            cell.peak = max(cell.peak, mean * MIB)
        else:
            cell.timed.append((int(line["n"]), mean * SECONDS[line["unit"]]))
