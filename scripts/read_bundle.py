"""Read a bundle that anybody may have made, without running or importing anything of it."""

import contextlib
import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_systems.measure.trace_file import read_trace
from cs336_systems.plan import Plan, read_plan
from cs336_systems.record.rows import digest_path
from cs336_systems.record.validation import Row
from scripts.archive import LARGEST_ENTRY_MB, MB, read_archive
from scripts.bundle import (
    CHECKS,
    CONSTRAINTS,
    COVERAGE,
    METADATA,
    PIN,
    PLAN,
    PROFILE,
    REQUIRED,
    ROOT,
    fault_of_name,
    read_rows,
)
from scripts.card.record import RecordedCard, read_cards
from scripts.limits import limited

MOST_SECONDS = 300
"""Processor time of a check: thirty times that of a recorded machine."""
MOST_GB = 4
"""Address space of a check, above what is there before."""
LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The files of a bundle, read and validated; whether they can be believed is another question."""

    files: Mapping[str, bytes]
    folder: Path
    """Where they were written, as a machine's results."""
    entities: Mapping[str, Mapping[str, Any]]
    """Entries of the crate's description by identifier."""
    plan: Plan
    csvs: Sequence[Path]
    """The jobs' CSV files."""
    rows: Mapping[str, Sequence[Row]]
    """The rows of each experiment."""
    cards: Sequence[RecordedCard]
    checks: str
    """The bundle's own table of self-checks, as CSV."""
    coverage: str
    """Its table of planned and measured cells, as CSV."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle, in a temporary folder of its own and within limits of time and memory.

    Raises:
        ValueError: it is not one, in one sentence.
        TooExpensive: reading it, or what is done while it is open, exceeds the limits.
    """
    with tempfile.TemporaryDirectory() as folder, limited(MOST_SECONDS, MOST_GB):
        try:
            yield read(read_archive(path, fault_of_name), Path(folder))
        except ValueError as error:
            sentence = re.sub(rf"{re.escape(folder)}/([a-z0-9-]+/)?", "", str(error))
            raise ValueError(sentence if sentence.startswith(f"{path}") else f"{path}: {sentence}") from None


def read(files: Mapping[str, bytes], folder: Path) -> Bundle:
    """Write the files of a bundle below an empty folder, as a machine's results, and read them.

    Raises:
        ValueError: a file is missing, or is not what its name says, in one sentence.
    """
    if missing := [name for name in REQUIRED if name not in files]:
        raise ValueError(f"it has no {missing[0]}; allowed: what `snakemake bundle` wrote")
    entities = read_metadata(files[METADATA])
    plan = read_foreign_plan(files[PLAN], folder / PLAN)
    results = folder / plan.machine
    for name, content in files.items():
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_bytes(content)
    csvs = sorted(results.glob("raw/*/*.csv"))
    if not csvs or sorted(results.glob("raw/*/*.csv.sha256")) != [digest_path(path) for path in csvs]:
        raise ValueError("it has no CSV file, or not one for each SHA-256; allowed: what `snakemake bundle` wrote")
    rows = read_rows(csvs, plan.machine)
    cards = read_cards(results, plan.machine)
    for trace in results.glob("traces/*"):
        check_trace(trace)
    check_pins(decoded(files.get(CONSTRAINTS, b""), CONSTRAINTS))
    claims = {"checks": decoded(files[CHECKS], CHECKS), "coverage": decoded(files[COVERAGE], COVERAGE)}
    return Bundle(
        files=files, folder=results, entities=entities, plan=plan, csvs=csvs, rows=rows, cards=cards, **claims
    )


def decoded(content: bytes, name: str) -> str:
    """The text of a file.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}; allowed: UTF-8") from None


def read_json(content: bytes, name: str) -> dict[str, Any]:
    """The keys and values of a JSON file.

    Raises:
        ValueError: it holds something else.
    """
    try:
        found = json.loads(decoded(content, name))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: {error}; allowed: JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: it holds {str(found)[:40]!r}; allowed: keys with values")
    return found


def read_metadata(content: bytes) -> dict[str, dict[str, Any]]:
    """The entities of a crate's description by their identifiers.

    Raises:
        ValueError: it does not describe an RO-Crate 1.1.
    """
    found = read_json(content, METADATA)
    try:
        entities = {entity["@id"]: entity for entity in found["@graph"]}
        if len(entities) < len(found["@graph"]):
            raise ValueError("two of its entities have the same @id")
        about = entities[METADATA]
        if (about["about"], about["conformsTo"]) != ({"@id": ROOT}, {"@id": PROFILE}):
            raise ValueError(f"it is not of {PROFILE}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{METADATA}: not the description of a bundle ({error})") from None
    return entities


def read_foreign_plan(content: bytes, path: Path) -> Plan:
    """Read a plan that anybody may have written, through a file.

    Raises:
        ValueError: it is no plan.
    """
    machine = read_json(content, PLAN).get("machine")
    if not isinstance(machine, str) or not LABEL.fullmatch(machine):
        raise ValueError(f"{PLAN}: machine is {str(machine)[:80]!r}; allowed: small letters, digits and hyphens")
    path.write_bytes(content)
    try:
        plan = read_plan(path)
        named = [(name, job.name, job.experiment) for name, jobs in plan.jobs.items() for job in jobs.values()]
        if any(name != experiment for name, _, experiment in named) or not all(job.cells for job in plan.all_jobs()):
            raise ValueError("a job without cells, or of another experiment")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{PLAN}: not the plan of a run ({error})") from None
    return plan


def check_trace(path: Path) -> None:
    """Check that a trace is one, and does not unpack to more than any file may have.

    Raises:
        ValueError: it is not, or it does.
    """
    try:
        with gzip.open(path) as file:
            if len(file.read(LARGEST_ENTRY_MB * MB + 1)) > LARGEST_ENTRY_MB * MB:
                raise ValueError(f"{path}: it unpacks to more than {LARGEST_ENTRY_MB} MB; allowed: up to that")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole trace file ({error})") from None
    read_trace(path)


def check_pins(constraints: str) -> None:
    """Check that an installer would fetch nothing from elsewhere.

    Raises:
        ValueError: a line is neither a package with its version nor a comment.
    """
    for line in constraints.splitlines():
        if not line.startswith("#") and not PIN.fullmatch(line):
            raise ValueError(f"{CONSTRAINTS}: has the line {line[:80]!r}; allowed: package==version, or a comment")
