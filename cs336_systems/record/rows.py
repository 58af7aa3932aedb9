"""The CSV record: one schema, one writer and one reader for the measurements of every experiment. No torch here.

A job's rows have their own file, with a digest next to it (`x.csv.sha256`, also readable by `sha256sum -c`). Every row
is checked when it is written and when it is read.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import create_model

from cs336_systems.experiments.base import Experiment, NonNegative, Positive, explain
from cs336_systems.record.machine import machine_label
from cs336_systems.record.measurement import Measurement
from cs336_systems.record.validation import Row, first_fault

BYTES_PER_CELL = 2**16
"""Upper bound of the size of a cell's rows."""
BYTES_PER_DIGEST = 1
"""Any number above 0: a digest fits into the smallest block of a file system."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The columns that every row of a job shares."""

    added_later: ClassVar[Mapping[str, Any]] = {"nodes": 1, "cores": 0, "links": "", "nccl": "", "torch_files": ""}
    """Columns that older files lack, and the value to assume there."""

    gpu: str = ""
    """GPU model of the machine; empty for a CPU."""
    gpu_count: NonNegative = 0
    """Number of GPUs used by the measurement; 0 on a CPU."""
    nodes: Positive = 1
    """Number of machines used by the measurement."""
    gpu_memory: NonNegative = 0
    """Memory of one GPU, bytes."""
    links: str = ""
    """Links of a GPU to others, as in "18 NVLinks" or "PCIe 5.0 x16"; empty where the driver does not say."""
    cpu: str = ""
    """Processor model."""
    cores: NonNegative = 0
    """Logical cores that the job might use; 0 where that was not recorded."""
    driver: str = ""
    """NVIDIA driver version."""
    cuda: str = ""
    """CUDA version for which PyTorch was built."""
    cudnn: str = ""
    """cuDNN version that PyTorch uses."""
    nccl: str = ""
    """NCCL version that PyTorch uses."""
    torch: str
    """PyTorch version."""
    torch_files: str = ""
    """Digest of PyTorch's files, which distinguishes a patched PyTorch from an unpatched one of the same version."""
    triton: str = ""
    """Triton version; empty if it is not installed."""
    flash_attn: str = ""
    """Version of FlashAttention-4; empty if it is not installed."""
    python: str
    """Python version."""
    tf32: bool
    """Whether an fp32 matmul was observed to round its inputs to TF32."""
    git_commit: str = ""
    """Commit of the code, from git or the environment variable GIT_COMMIT; empty if unknown."""
    git_dirty: bool | None = None
    """Whether tracked code differed from the commit; empty if unknown."""
    revisions: str
    """Revisions of the experiment, the contender and the instruments that measured it, as NAME=REVISION separated by
    spaces; for a user's code its digest."""
    utc: str
    """When the job ended, ISO 8601, UTC."""
    seed: NonNegative
    """Seed for the random weights and data."""
    startup_seconds: Annotated[float, Ge(0)]
    """Time from the start of the job's process to its first cell: mostly imports."""


@cache
def row_model(experiment: type[Experiment]) -> type[Row]:
    """Make the schema of an experiment's rows: parameters, measurement, details and provenance, in order."""
    columns: dict[str, Any] = {"experiment": (Literal[experiment.name], ...)}
    for part in (experiment, Measurement, Provenance):
        hints = typing.get_type_hints(part, include_extras=True)
        for field in dataclasses.fields(part):
            if field.name == "details":
                columns |= dict.fromkeys(experiment.details, (str, ""))
                continue
            # A parameter missing from a CSV is an error, not its default, unless the default is an empty string.
            required = field.default is dataclasses.MISSING or (part is experiment and field.default != "")
            columns[field.name] = (hints[field.name], ... if required else field.default)
    return create_model(f"{experiment.__name__}Row", __base__=Row, **columns)


def make_row(cell: Experiment, measurement: Measurement, provenance: Provenance) -> Row:
    """Make a validated row; carriage returns become spaces."""
    values: dict[str, Any] = {"experiment": cell.name}
    for part in (cell, measurement, provenance):
        values |= dataclasses.asdict(part)
    values |= values.pop("details")
    # Python's csv writes a lone carriage return unquoted, and cannot read that back.
    readable = {key: value.replace("\r", " ") if isinstance(value, str) else value for key, value in values.items()}
    return row_model(type(cell)).model_validate(readable)


def parameters(experiment: type[Experiment]) -> list[str]:
    """The names of an experiment's parameters, in column order."""
    return [field.name for field in dataclasses.fields(experiment)]


@contextlib.contextmanager
def reserved(path: Path, cells: int) -> Iterator[None]:
    """Reserve disk space for a job's CSV and its digest while its cells are measured.

    Raises:
        ValueError: no file can be written there, in one sentence.
    """
    with contextlib.ExitStack() as kept:
        try:
            # Renaming a file to the name of a device, such as /dev/null, would remove the device.
            if path.exists() and not path.is_file():
                kind = "a folder" if path.is_dir() else "a device or a pipe"
                raise ValueError(f"output is {str(path)!r}, which is {kind}; allowed: a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            for file, size in ((path, cells * BYTES_PER_CELL), (digest_path(path), BYTES_PER_DIGEST)):
                kept.callback(_discard, _temporary(file))
                _write(_temporary(file), bytes(size))
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
            raise ValueError(f"output is {str(path)!r}, where no file can be written ({reason})") from None
        yield


def check_replaceable(path: Path) -> None:
    """Raise a ValueError if a job's CSV would replace a file that no measurement wrote."""
    if path.is_file() and path.stat().st_size and not digest_path(path).exists():
        raise ValueError(f"output is {str(path)!r}, which no measurement wrote; allowed: a new file")


def write_job(path: Path, experiment: type[Experiment], rows: Sequence[Row]) -> None:
    """Write a job's CSV and its digest. The digest is written first, so no CSV ever exists without one.

    Raises:
        ValueError: a row is not a possible measurement; the sentence names column and value. Nothing is written.
    """
    text = _to_csv(path, experiment, rows)
    _write_atomically(digest_path(path), f"{_digest(text)}  {path.name}\n".encode())
    _write_atomically(path, text)


def read_jobs(experiment: type[Experiment], paths: Iterable[Path], machine: str | None = None) -> list[Row]:
    """Read all rows of the jobs' CSV files, validated.

    Args:
        experiment: the experiment of the rows.
        paths: the CSV files.
        machine: label of the machine that must have written them, if given.

    Raises:
        ValueError: a file without a digest, with a damaged one, or changed since it was written; a missing or unknown
            column, a line with too many or too few fields, or an impossible value, named with file, line, column and
            value; a duplicate metric in a cell; rows from another machine.
    """
    rows: list[Row] = []
    seen: dict[tuple[Any, ...], str] = {}
    for path in map(Path, paths):
        _check_digest(path)
        for line, row in _read(experiment, path):
            where = f"{path}, line {line}"
            label = machine_label(row.gpu)
            if machine not in (None, label):
                raise ValueError(f"{where}: gpu is {row.gpu!r}; allowed: the GPU model of the folder, {machine}")
            key = tuple(getattr(row, name) for name in [*parameters(experiment), "metric", *experiment.details])
            if key in seen:
                raise ValueError(f"{where}: metric is {row.metric!r}, which {seen[key]} already has for the same cell")
            seen[key] = where
            rows.append(row)
    return rows


def read_table(experiment: type[Experiment], path: Path) -> list[Row]:
    """Read a table of the rows of several jobs; raises as `read_jobs` does."""
    return [row for _, row in _read(experiment, path)]


def digest_path(path: Path) -> Path:
    """Path of the digest of a job's CSV."""
    return path.with_name(f"{path.name}.sha256")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_digest(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is not a file; allowed: a CSV that a measurement wrote")
    digest_file = digest_path(path)
    if not digest_file.is_file():
        raise ValueError(f"{path}: {digest_file.name} is missing next to it; a measurement writes both")
    written = digest_file.read_bytes().partition(b" ")[0].decode(errors="replace")
    if not re.fullmatch("[0-9a-f]{64}", written):
        raise ValueError(
            f"{digest_file}: begins with {written[:40]!r}; allowed: the SHA-256 of {path.name} in hexadecimal"
        )
    digest = _digest(path.read_bytes())
    if digest != written:
        raise ValueError(
            f"{path}: changed since it was written: its SHA-256 is {digest}, but {digest_file.name} has {written}"
        )


def _to_csv(path: Path, experiment: type[Experiment], rows: Sequence[Row]) -> bytes:
    for row in rows:
        if fault := first_fault(experiment, row):
            raise ValueError(f"{path}: {fault}")
    columns = list(row_model(experiment).model_fields)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in rows)
    return file.getvalue().encode()


def _temporary(path: Path) -> Path:
    """Temporary path of an incomplete file; the next job overwrites a killed job's leftover."""
    return path.with_name(f".{path.name}.partial")


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically: a temporary file in the same folder, flushed, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(_temporary(path), content)
        _temporary(path).replace(path)
    except BaseException:
        _discard(_temporary(path))
        raise


def _discard(temporary: Path) -> None:
    with contextlib.suppress(OSError):  # It does not exist, or cannot exist.
        temporary.unlink()


def _write(path: Path, content: bytes) -> None:
    """Write a file to disk, into its reserved space."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _read(experiment: type[Experiment], path: Path) -> Iterator[tuple[int, Row]]:
    """Read each row of a CSV with the line on which it ends."""
    model = row_model(experiment)
    absent = {**experiment.added_later, **Provenance.added_later}
    # With or without the byte-order mark of spreadsheets.
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            header = reader.fieldnames or []
            _check_header(header, list(model.model_fields), absent)
            older = {name: value for name, value in absent.items() if name not in header}
            for record in reader:
                # DictReader inserts these if fields and columns do not match.
                if None in record or None in record.values():
                    raise ValueError(f"more or fewer fields than the {len(header)} columns")
                # An empty field stands for the default: None or an empty string.
                row = model.model_validate(older | {key: value for key, value in record.items() if value != ""})
                if fault := first_fault(experiment, row):
                    raise ValueError(fault)
                yield reader.line_num, row
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {explain(error)}") from None


def _check_header(header: Sequence[str], columns: Sequence[str], may_be_absent: Iterable[str]) -> None:
    for column in columns:
        if header.count(column) > 1 or (column not in header and column not in may_be_absent):
            raise ValueError(f"column {column!r} is {'duplicated' if column in header else 'missing'}")
    for column in header:
        if column not in columns:
            raise ValueError(f"column {column!r} is unknown here; allowed: {', '.join(columns)}")
