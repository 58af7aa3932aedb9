"""Made-up measurements of every planned cell, plausible enough to pass the report's self-checks.

Each experiment has a module of its name here, whose `measure(cell, on_gpu=...)` makes up what the experiment measures.
"""

import contextlib
import copy
import importlib
import random
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pypdfium2 import PdfDocument

from cs336_systems.accounting.contenders import gradients
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.metrics import SECONDS
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import listed
from cs336_systems.plan import plan_jobs
from cs336_systems.record.measurement import POWER, SM_CLOCK, WALL, WHOLE_CELL, Measurement, summarize
from cs336_systems.record.rows import Provenance, make_row, write_job
from scripts.rendering.contents import read_contents
from scripts.typeset import typeset

ROOT = Path(__file__).parents[2]
PEAK = listed("NVIDIA H200")
H200 = {"gpu": "NVIDIA H200", "gpu_count": 1, "gpu_memory": 141 * 2**30, "driver": "580.1", "cuda": "13.0"}
SAMPLED_EVERY = 0.2
EMPTY_PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50"/>'
OOM = Measurement(metric=WHOLE_CELL, status="oom", message="CUDA out of memory. Tried to allocate 20.00 GiB")
NO_CPU_MEMORY = Measurement(metric="peak_memory", unit="MiB", status="skipped", message="on CUDA devices only")
NEEDS_GPU = Measurement(metric=WHOLE_CELL, status="skipped", message="needs a CUDA device")


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
        "source_digest": "0123456789ab",
        "utc": "2026-01-02T03:04:05+00:00",
        "seed": 0,
        "startup_seconds": 2.5,
    }
    return Provenance(**(values | changes))


def jittered(cell: Experiment, metric: str, milliseconds: float, n: int, first: float = 1.0) -> list[float]:
    """Samples about a time, the first one `first` times as long; the same at each call."""
    noise = random.Random(f"{cell} {metric}")
    return [milliseconds * factor * noise.uniform(0.99, 1.01) for factor in [first, *[1.0] * (n - 1)]]


def observed(cell: Any, details: dict[str, str]) -> list[Measurement]:
    """The collectives, tokens and copies of a contender's step: those that it declares, and half of the copies."""
    (declared,) = [each for each in cell.contenders if each.key == " ".join(filter(None, details.values()))]
    kinds = {
        f"{sent.part} {sent.what[0]}": (sent.calls[0], sent.bytes[0]) for sent in declared.sends(cell) if sent.what
    }
    in_all = tuple(sum(numbers) for numbers in zip((0, 0), *kinds.values(), strict=True))
    written = (30 + declared.copies / 2) * gradients(cell)
    rows = [
        summarize(metric, unit, [number], details={**details, "kind": kind})
        for kind, numbers in {"": in_all, **kinds}.items()
        for metric, unit, number in zip(("collectives", "collective_bytes"), ("", "B"), numbers, strict=True)
    ]
    tokens = summarize("tokens", "", [cell.batch_size * cell.context], details=details)
    return [*rows, tokens, summarize("written", "B", [written], details=details)]


def planned_cells(experiment: str, scale: str) -> list[Any]:
    """Every cell that config.yaml plans of an experiment."""
    return [cell for job in plan_jobs(experiment, config(), scale).values() for cell in job.cells]


def measurements_of(cell: Experiment, lost: Measurement | None, *, on_gpu: bool) -> list[Measurement]:
    """A cell's measurements as a job writes them; `lost` is the only one of a cell that could not be measured."""
    noise = random.Random(f"{cell}")
    found = [lost] if lost else importlib.import_module(f"{__name__}.{cell.name}").measure(cell, on_gpu=on_gpu)
    if found[0].metric == WHOLE_CELL:
        return [*found, summarize(WALL, "s", [noise.uniform(0.1, 0.2)])]
    timed = sum(row.n * row.mean * SECONDS[row.unit] for row in found if row.mean and row.unit in SECONDS)
    wall = timed + noise.uniform(0.5, 1)
    found = [*map(of_whole_bytes, found), summarize(WALL, "s", [wall])]
    if on_gpu:
        rounds = 1 + int(wall / SAMPLED_EVERY / 3)
        found += [
            summarize(SM_CLOCK, "MHz", [1980.0, 1980.0, 1965.0] * rounds),
            summarize(POWER, "W", [320.0, 540.5, 610.0] * rounds),
        ]
    return found


def of_whole_bytes(measurement: Measurement) -> Measurement:
    """A single amount of memory without fractions of a byte; anything else as it is."""
    if measurement.unit != "MiB" or measurement.n != 1 or measurement.mean is None:
        return measurement
    whole = round(measurement.mean * MIB) / MIB
    return replace(measurement, mean=whole, median=whole, p20=whole, p80=whole)


def rows_of(
    cells: Iterable[Experiment],
    origin: Provenance,
    outcome: Callable[[Any], Measurement | None] = lambda cell: None,
) -> list[BaseModel]:
    """The rows of cells; `outcome` may give the one measurement of a cell that could not be measured."""
    return [
        make_row(cell, measurement, replace(origin, gpu_count=gpus_of(cell) if origin.gpu else 0))
        for cell in cells
        for measurement in measurements_of(cell, outcome(cell), on_gpu=bool(origin.gpu))
    ]


@cache
def planned_rows(experiment: str, scale: str, **origin: Any) -> list[BaseModel]:
    """The rows of every cell that config.yaml plans of an experiment. Not to be changed: several tests share them."""
    return rows_of(planned_cells(experiment, scale), provenance(**origin))


def gpus_of(cell: Experiment) -> int:
    """GPUs that a cell takes where there are GPUs."""
    return 0 if getattr(cell, "backend", "nccl") == "gloo" else cell.processes


def write_raw(results: Path, experiment: str, rows: list[BaseModel]) -> Path:
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
