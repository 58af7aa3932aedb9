"""A job's measured cells, saved in a file one by one, so that a later launch measures only the others.

`cs336_systems.run.relaunch` names the file in the environment variable KEPT. Its first line identifies the launch; each
further line is the name of a started cell, or that cell's measurements, or that memory ran out in it. No torch.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from cs336_systems.record.measurement import Measurement

KEPT = "CS336_SYSTEMS_KEPT_CELLS"
C = TypeVar("C")


def start_keeping(file: Path, launched: str) -> int:
    """Prepare a file for a launch, and return its number of cells from earlier identical launches.

    Lines of another launch are discarded, and so is the name of the cell in which the earlier launch ended.
    """
    lines = _complete_lines(file) if file.is_file() else []
    first = {"launched": launched}
    cells = [line for line in lines if isinstance(line, list)] if lines[:1] == [first] else []
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text("".join(map(_line, [first, *cells])), encoding="utf-8")
    new.replace(file)
    return len(cells)


def kept_cells() -> list[list[Measurement]]:
    """Measurements of earlier launches of this job, by cell; empty in a first launch, or without a file.

    Raises:
        ValueError: the file that the environment names does not exist.
    """
    file = os.environ.get(KEPT)
    if file and not Path(file).is_file():
        raise ValueError(f"the environment variable {KEPT} is {file!r}; allowed: a file that cs336_systems.run made")
    return measured_cells(Path(file)) if file else []


def measured_cells(file: Path) -> list[list[Measurement]]:
    """Read the measurements of each cell from a file."""
    cells = (line for line in _complete_lines(file) if isinstance(line, list)) if file.is_file() else ()
    return [[Measurement(**fields) for fields in cell] for cell in cells]


def cell_under_way(file: Path) -> str | None:
    """Name of the cell that has started and has not been measured yet; None between cells."""
    return _under_way(file).get("cell")


def out_of_memory(file: Path) -> str:
    """How memory ran out in the current cell, if a rank has reported it; else empty."""
    return _under_way(file).get("oom", "")


def say_out_of_memory(message: str) -> None:
    """Record, on any rank, that memory ran out in the current cell, which ends the launch because the other ranks
    wait.
    """
    file = os.environ.get(KEPT)
    if file:
        _append(Path(file), {"cell": cell_under_way(Path(file)), "oom": message})


def keep(
    measured: Iterable[tuple[C, list[Measurement]]], names: Sequence[str]
) -> Iterator[tuple[C, list[Measurement]]]:
    """Pass cells through; save the name of each before, and its measurements after it is measured."""
    file = os.environ.get(KEPT)
    cells = iter(measured)
    for name in names:
        if file:
            _append(Path(file), {"cell": name})
        cell, measurements = next(cells)
        if file:
            add_cell(Path(file), measurements)
        yield cell, measurements


def add_cell(file: Path, measurements: Iterable[Measurement]) -> None:
    """Append one cell's measurements."""
    _append(file, [asdict(measurement) for measurement in measurements])


def _append(file: Path, content: Any) -> None:
    with file.open("a", encoding="utf-8") as kept:
        kept.write(_line(content))


def _line(content: Any) -> str:
    return json.dumps(content) + "\n"


def _under_way(file: Path) -> dict[str, str]:
    """The last line, unless it has a cell's measurements."""
    last = _complete_lines(file)[-1]
    return last if isinstance(last, dict) else {}


def _complete_lines(file: Path) -> list[Any]:
    """Read the lines before the first one truncated by a kill or a full disk."""
    lines = []
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
