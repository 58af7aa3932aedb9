"""The CSV record: one schema, one writer and one reader for the measurements of every experiment. No torch here."""

import csv
import dataclasses
import os
import statistics
import tempfile
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

from cs336_systems.experiments.base import Experiment, explain

Status = Literal["ok", "oom", "skipped", "failed"]
WHOLE_CELL = "cell"
"""Metric of the one row that a cell leaves when it could not be measured."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One metric of one cell: either statistics of n samples, or a value that is no number."""

    metric: str
    """What was measured."""
    unit: str = ""
    """Unit of the statistics."""
    n: int = 0
    """Number of samples."""
    mean: float | None = None
    """Arithmetic mean."""
    std: float | None = None
    """Sample standard deviation (n - 1); empty for one sample."""
    median: float | None = None
    """Median."""
    p20: float | None = None
    """20th percentile."""
    p80: float | None = None
    """80th percentile."""
    value: str = ""
    """An observation that is no number, such as a dtype."""
    status: Status = "ok"
    """ok; oom: memory ran out; skipped: this machine lacks something; failed: a tool such as a compiler failed."""
    message: str = ""
    """Reason of any status but ok."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The columns that every row of a job shares."""

    gpu: str = ""
    """GPU model; empty when measured on the CPU."""
    gpu_count: int = 0
    """GPUs that the measurement ran on."""
    gpu_memory: int = 0
    """Memory of one GPU, bytes."""
    cpu: str = ""
    """Processor model."""
    driver: str = ""
    """NVIDIA driver version."""
    cuda: str = ""
    """CUDA version PyTorch was built for."""
    torch: str
    """PyTorch version."""
    triton: str = ""
    """Triton version; empty where it is not installed."""
    python: str
    """Python version."""
    tf32: bool
    """Whether an fp32 matrix multiply was seen to round its inputs to TF32."""
    git_commit: str = ""
    """Commit of the code, from git or the environment variable GIT_COMMIT; empty if neither knows it."""
    git_dirty: bool | None = None
    """Whether tracked code differed from the commit; empty if unknown."""
    source_digest: str
    """Digest of the modules that the experiment imports."""
    utc: str
    """When the job ended, ISO 8601, UTC."""
    seed: int
    """Seed of the random weights and data."""
    startup_seconds: float
    """From the start of the job's process to its first cell: imports, mostly."""


def summarize(metric: str, unit: str, samples: Sequence[float]) -> Measurement:
    """Statistics of samples (at least one)."""
    ordered = sorted(samples)
    quintiles = statistics.quantiles(ordered, n=5, method="inclusive") if len(ordered) > 1 else ordered * 4
    return Measurement(
        metric=metric,
        unit=unit,
        n=len(ordered),
        mean=statistics.fmean(ordered),
        std=statistics.stdev(ordered) if len(ordered) > 1 else None,
        median=statistics.median(ordered),
        p20=quintiles[0],
        p80=quintiles[3],
    )


@cache
def row_model(experiment: type[Experiment]) -> type[BaseModel]:
    """The schema of an experiment's rows: its parameters, the measurement, the provenance, in column order."""
    columns: dict[str, Any] = {"experiment": (Literal[experiment.name], ...)}
    for part in (experiment, Measurement, Provenance):
        hints = typing.get_type_hints(part, include_extras=True)
        for field in dataclasses.fields(part):
            # A parameter left out of a CSV is an error, not its default.
            required = part is experiment or field.default is dataclasses.MISSING
            columns[field.name] = (hints[field.name], ... if required else field.default)
    config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
    return create_model(f"{experiment.__name__}Row", __config__=config, **columns)


def make_row(cell: Experiment, measurement: Measurement, provenance: Provenance) -> BaseModel:
    """A validated row; a carriage return in a text becomes a blank."""
    values = {"experiment": cell.name}
    for part in (cell, measurement, provenance):
        values |= dataclasses.asdict(part)
    # Python's csv writes a lone carriage return unquoted, and cannot read that back.
    readable = {key: value.replace("\r", " ") if isinstance(value, str) else value for key, value in values.items()}
    return row_model(type(cell))(**readable)


def write_rows(path: Path, experiment: type[Experiment], rows: Sequence[BaseModel]) -> None:
    """Write a CSV that is either absent or whole: a temporary file in the same folder, flushed, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(row_model(experiment).model_fields), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.model_dump() for row in rows)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_rows(experiment: type[Experiment], paths: Iterable[Path]) -> list[BaseModel]:
    """All rows of the CSV files, validated.

    Raises:
        ValueError: a file with a missing or unknown column, a line with too many or too few fields or a value out of
            its range, named with file and line; or rows of two GPU models.
    """
    rows: list[BaseModel] = []
    first_with: dict[str, Path] = {}
    for path in paths:
        for row in _read_file(experiment, Path(path)):
            first_with.setdefault(row.gpu, Path(path))
            rows.append(row)
    if len(first_with) > 1:
        seen = " and ".join(f"{gpu or 'no GPU'} ({path})" for gpu, path in first_with.items())
        raise ValueError(f"one table would hold rows of two GPU models: {seen}; allowed: one model a results folder")
    return rows


def _read_file(experiment: type[Experiment], path: Path) -> Iterable[BaseModel]:
    model = row_model(experiment)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        try:
            _check_header(reader.fieldnames or [], list(model.model_fields))
            for record in reader:
                # What DictReader puts where fields and columns do not pair off.
                if None in record or None in record.values():
                    raise ValueError(f"more or fewer fields than the {len(model.model_fields)} columns")
                # An empty field stands for the default: None or an empty string.
                yield model(**{key: value for key, value in record.items() if value != ""})
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {explain(error)}") from None


def _check_header(header: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if header.count(column) != 1:
            raise ValueError(f"column {column!r} is {'twice there' if column in header else 'missing'}")
    for column in header:
        if column not in columns:
            raise ValueError(f"column {column!r} is not known here; allowed: {', '.join(columns)}")
