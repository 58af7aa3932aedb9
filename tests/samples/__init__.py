"""Measured rows to test with: recorded on H200s, or from a CPU's smoke run and kept here.

After `make` on a CPU, `python -m scripts.bundle.promote results/cpu tests/samples` keeps its rows in place of these.
"""

import contextlib
import copy
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pypdfium2 import PdfDocument

from cs336_systems.config import read_config
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.grids import plan_jobs
from cs336_systems.measure.gpus import listed
from cs336_systems.record.measurement import WALL, Measurement
from cs336_systems.record.rows import Provenance, parameters, read_jobs, write_job
from cs336_systems.record.validation import Row
from scripts.rendering.contents import read_contents
from scripts.stages.typeset import typeset

ROOT = Path(__file__).parents[2]
PEAK = listed("NVIDIA H200")
H200 = {"gpu": "NVIDIA H200", "gpu_count": 1, "gpu_memory": 141 * 2**30, "driver": "580.1", "cuda": "13.0"}
EMPTY_PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50"/>'


def config(**changes: Any) -> dict[str, Any]:
    """The project's config.yaml, a copy of its own, with some top-level keys changed."""
    return copy.deepcopy(_config()) | changes


@cache
def _config() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))


def provenance(**changes: Any) -> Provenance:
    """A job's provenance, on a CPU unless `changes` say otherwise."""
    values = {
        "cpu": "AMD EPYC",
        "torch": "2.11.0",
        "python": "3.12.3",
        "tf32": False,
        "git_commit": "0123abc",
        "git_dirty": False,
        "revisions": "runner=1",
        "utc": "2026-01-02T03:04:05+00:00",
        "seed": 0,
        "startup_seconds": 2.5,
    }
    return Provenance(**(values | changes))


def planned_cells(experiment: str, scale: str) -> list[Any]:
    """Every cell that config.yaml plans of an experiment."""
    return [cell for job in plan_jobs(experiment, read_config(config()), scale).values() for cell in job.cells]


@cache
def measured(experiment: str, *, on_gpu: bool) -> dict[tuple[Any, ...], list[Row]]:
    """An experiment's rows by the parameters of their cells: recorded on H200s, or kept here from a CPU's smoke run."""
    kind = EXPERIMENTS[experiment]
    folder = ROOT / ("recorded/nvidia-h200" if on_gpu else "tests/samples/cpu") / "raw" / experiment
    cells = defaultdict(list)
    for row in read_jobs(kind, sorted(folder.glob("*.csv"))):
        cells[tuple(getattr(row, name) for name in parameters(kind))].append(row)
    return dict(cells)


def rows_of(
    cells: Iterable[Experiment],
    *,
    on_gpu: bool = True,
    lost: Callable[[Any], Measurement | None] = lambda cell: None,
    **origin: Any,
) -> list[Row]:
    """The measured rows of cells, on H200s or on a CPU; those that were never measured have none.

    `lost` gives the one measurement of a cell that could not be measured; `origin` changes the rows' provenance.
    """
    chosen = []
    for cell in cells:
        rows = measured(cell.name, on_gpu=on_gpu).get(astuple(cell), [])
        if rows and (loss := lost(cell)):
            values = asdict(loss)
            values |= dict.fromkeys(cell.details, "") | values.pop("details")
            rows = [rows[0].model_copy(update=values), *(row for row in rows if row.metric == WALL)]
        chosen += [row.model_copy(update=origin) for row in rows] if origin else rows
    return chosen


@cache
def planned_rows(experiment: str, scale: str) -> list[Row]:
    """The rows of every cell that config.yaml plans of an experiment, the smoke scale's on a CPU. Not to be changed."""
    return rows_of(planned_cells(experiment, scale), on_gpu=scale != "smoke")


def write_raw(results: Path, experiment: str, rows: list[Row]) -> Path:
    """Put an experiment's rows into the one raw CSV file of a results folder."""
    path = results / "raw" / experiment / "all.csv"
    write_job(path, EXPERIMENTS[experiment], rows)
    return path


def pdf_text(path: Path) -> str:
    """A PDF's text without white space, since a typeset line may break anywhere."""
    with PdfDocument(path) as pages:
        return squeeze("".join(page.get_textpage().get_text_bounded() for page in pages))


def squeeze(text: str) -> str:
    """A text without white space and the breaks that a table's long names may have."""
    return re.sub(r"[\s\u200b]+", "", text)


def typeset_without_pictures(text: str, project: Path, pictures: Path) -> None:
    """Typeset a report in a folder that stands for the project's, with empty pictures."""
    shutil.copytree(ROOT / "report", project / "report", dirs_exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    for name in read_contents(ROOT / "report" / "contents.yaml").figures:
        (pictures / f"{name}.svg").write_text(EMPTY_PICTURE)
    source = project / "writeup.typ"
    source.write_text(text, encoding="utf-8")
    with contextlib.chdir(project):
        typeset(source, project / "writeup.pdf")


def mistakes(kind: str) -> list[list[Any]]:
    """Mistakes of a kind in tests/data/mistakes.yaml, and the sentences that answer them."""
    return yaml.safe_load((ROOT / "tests/data/mistakes.yaml").read_text(encoding="utf-8"))[kind]
