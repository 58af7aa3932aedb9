"""The cells that a job has measured, kept in a file as they come, so that it can be launched again for the others.

`cs336_systems.relaunch` names the file in the environment variable KEPT; each line is what one cell measured. No torch.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from cs336_systems.measure.measurement import Measurement

KEPT = "CS336_SYSTEMS_KEPT_CELLS"
C = TypeVar("C")


def kept_cells() -> list[list[Measurement]]:
    """What earlier launches of this job have measured, by cell; empty in a first launch, or without a file."""
    file = os.environ.get(KEPT)
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file else []
    return [[Measurement(**fields) for fields in json.loads(line)] for line in lines]


def keep(measured: Iterable[tuple[C, list[Measurement]]]) -> Iterator[tuple[C, list[Measurement]]]:
    """The same cells, each of them kept; the file is touched when the first one begins."""
    file = os.environ.get(KEPT)
    if file:
        Path(file).touch()
    for cell, measurements in measured:
        if file:
            add_cell(Path(file), measurements)
        yield cell, measurements


def add_cell(file: Path, measurements: Iterable[Measurement]) -> None:
    """Add what a cell has measured."""
    with file.open("a", encoding="utf-8") as kept:
        kept.write(json.dumps([asdict(measurement) for measurement in measurements]) + "\n")
