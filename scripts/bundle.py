"""Pack a machine's results as one file that others can check: an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1), zipped.

It holds the rows with their SHA-256, the machine's cards, the plan, the versions, the verdicts, and how to cite them.
The same results give the same bytes: every time in it is from the rows.
"""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cs336_systems import __version__
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import read_plan
from cs336_systems.record.machine import SOFTWARE
from cs336_systems.record.rows import digest_path, read_jobs
from cs336_systems.record.validation import Row
from cs336_systems.yaml_file import read_mapping
from scripts.archive import DATE, pack
from scripts.card.record import card_files, read_cards, recorded_content
from scripts.log import log_to

METADATA, PLAN, COVERAGE, CHECKS = "ro-crate-metadata.json", "plan.json", "coverage.csv", "checks.csv"
CONSTRAINTS, CITATION, LICENSE = "constraints.txt", "CITATION.cff", "LICENSE"
REQUIRED = (METADATA, PLAN, COVERAGE, CHECKS, CITATION, LICENSE)
STEM = r"\w[\w.,=+-]{0,120}"
NAMES = re.compile(
    rf"{'|'.join(map(re.escape, (*REQUIRED, CONSTRAINTS)))}"
    rf"|raw/({'|'.join(EXPERIMENTS)})/{STEM}\.csv(\.sha256)?|traces/{STEM}\.json\.gz"
    rf"|card/\d{{8}}T\d{{6}}(\.json|-{STEM}\.csv(\.sha256)?)",
    re.ASCII,
)
ALLOWED = ", ".join(
    [
        "raw/EXPERIMENT/JOB.csv and its .sha256",
        "card/TIME.json, card/TIME-JOB.csv and its .sha256",
        "traces/NAME.json.gz",
        *REQUIRED,
        CONSTRAINTS,
    ]
)
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
"""A line of constraints: a package with its version, and nothing that an installer would fetch from elsewhere."""
SAME_HERE = ("torch", "triton")
"""Packages whose installed versions tell whether this environment is the one that measured."""
FORMATS = {".csv": "text/csv", ".json": "application/json", ".gz": "application/gzip"}
PROFILE, ROOT, PROGRAM = "https://w3id.org/ro/crate/1.1", "./", "#cs336-systems"
Files = Mapping[str, bytes]
Rows = Mapping[str, Sequence[Row]]


def fault_of_name(name: str) -> str:
    """The fault of a name in a bundle; empty if it may be there."""
    return "" if NAMES.fullmatch(name) else f"is none of a bundle's; allowed: {ALLOWED}"


def bundle(csvs: Sequence[str], plan: str, coverage: str, checks: str, trace: str, output: str) -> None:
    """Write a bundle.

    Args:
        csvs: the jobs' CSV files, each with its SHA-256 next to it, in the machine's folder, where its cards are too.
        plan: the plan of the run.
        coverage: planned against measured cells.
        checks: outcomes of the self-checks.
        trace: the trace of a step; empty if there is none.
        output: the bundle.

    Raises:
        ValueError: no CSV file, a file that no measurement on the plan's machine wrote, or a name that no bundle has.
    """
    machine = read_plan(Path(plan)).machine
    if not csvs:
        raise ValueError(f"nothing is measured on {machine!r} yet; allowed: at least one CSV file of an experiment")
    paths = [Path(csv) for csv in csvs]
    rows = read_rows(paths, machine)
    raw = {f"raw/{path.parent.name}/{path.name}": path for csv in paths for path in (csv, digest_path(csv))}
    traces = {f"traces/{Path(trace).name}": Path(trace)} if trace else {}
    others = {PLAN: plan, COVERAGE: coverage, CHECKS: checks, CITATION: CITATION, LICENSE: LICENSE}
    files = {name: Path(path).read_bytes() for name, path in (raw | traces | others).items()}
    folder = paths[0].parents[2]
    read_cards(folder, machine)
    files |= {name: recorded_content(path, name) for name, path in card_files(folder).items()}
    last = max(each(rows), key=measured_at)
    if pins := constraints(folder, last):
        files[CONSTRAINTS] = pins
    for name in files:
        if fault := fault_of_name(name):
            raise ValueError(f"{name!r} {fault}")
    files[METADATA] = metadata(files, rows)
    date = measured_at(last)
    pack(
        Path(output),
        files,
        date=max(DATE, (date.year, date.month, date.day, date.hour, date.minute, date.second)),
    )


def read_rows(csvs: Iterable[Path], machine: str) -> dict[str, list[Row]]:
    """All rows of jobs' CSV files by experiment, validated; raises as `read_jobs` does."""
    paths = sorted(csvs)
    return {
        name: read_jobs(kind, [path for path in paths if path.parent.name == name], machine)
        for name, kind in EXPERIMENTS.items()
    }


def each(rows: Rows) -> Iterator[Row]:
    """The rows of all experiments."""
    for measured in rows.values():
        yield from measured


def measured_at(row: Row) -> datetime:
    """When a row's job ended, in UTC.

    Raises:
        ValueError: no calendar has that time.
    """
    try:
        return datetime.fromisoformat(row.utc).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"utc is {row.utc!r}; allowed: a time in the years 1 to 9999 in UTC too") from None


def constraints(folder: Path, last: Row) -> bytes:
    """The packages that measured: those in the machine's folder, or this environment's if its versions are the rows'.

    Empty if neither tells.
    """
    if (kept := folder / CONSTRAINTS).is_file():
        return kept.read_bytes()
    installed = {package.metadata["Name"].lower(): package.version for package in distributions()}
    here = {"python": platform.python_version(), **{name: installed.get(name, "") for name in SAME_HERE}}
    if not here.items() <= vars(last).items():
        return b""
    found = sorted(f"{name}=={version}" for name, version in installed.items() if name != "cs336-systems")
    pins = filter(PIN.fullmatch, found)
    title = f"# Python packages where these results were bundled (Python {platform.python_version()}):"
    return "".join(f"{line}\n" for line in (title, *pins)).encode()


def metadata(files: Files, rows: Rows) -> bytes:
    """The crate's description in JSON-LD."""
    root, *others = entities(files, rows)
    license = read_mapping(Path(CITATION))["license"]
    terms = {"@id": f"https://spdx.org/licenses/{license}"}
    graph = [
        {"@id": METADATA, "@type": "CreativeWork", "about": {"@id": ROOT}, "conformsTo": {"@id": PROFILE}},
        {**root, "license": terms},
        *others,
        {**terms, "@type": "CreativeWork", "name": license},
        {"@id": PROGRAM, "@type": "SoftwareApplication", "name": "cs336-systems", "version": __version__},
    ]
    # The vocabulary of RO-Crate 1.1 is older than sha256.
    context = [f"{PROFILE}/context", {"sha256": "https://schema.org/sha256"}]
    return json.dumps({"@context": context, "@graph": graph}, indent=1, sort_keys=True, ensure_ascii=False).encode()


def entities(files: Files, rows: Rows) -> list[dict[str, Any]]:
    """The description's claims about files and rows, which anyone with both can verify."""
    times = [measured_at(row).isoformat() for row in each(rows)]
    machine = sorted({row.gpu or vars(row)["cpu"] for row in each(rows)})
    parts = {quote(name): content for name, content in sorted(files.items()) if name != METADATA}
    software = [
        {"@id": f"#{column}-{quote(value)}", "@type": "SoftwareApplication", "name": name, "version": value}
        for column, name in SOFTWARE.items()
        for value in sorted({vars(row)[column] for row in each(rows)} - {""})
    ]
    return [
        {
            "@id": ROOT,
            "@type": "Dataset",
            "name": f"Measurements on {' and '.join(machine)}",
            "description": f"{len(times)} rows of the experiments of Stanford CS336, assignment 2, by cs336-systems",
            "datePublished": max(times),
            "hasPart": [{"@id": name} for name in parts],
            "citation": {"@id": CITATION},
            "mentions": {"@id": "#measurement"},
            "softwareRequirements": [{"@id": entity["@id"]} for entity in software],
        },
        {
            "@id": "#measurement",
            "@type": "CreateAction",
            "name": "snakemake",
            "startTime": min(times),
            "endTime": max(times),
            "instrument": [{"@id": "#machine"}, {"@id": PROGRAM}],
            "result": {"@id": ROOT},
        },
        {"@id": "#machine", "@type": "IndividualProduct", "name": " and ".join(machine)},
        *software,
        *(
            {
                "@id": name,
                "@type": "File",
                "contentSize": str(len(content)),
                "encodingFormat": FORMATS.get(Path(name).suffix, "text/plain"),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for name, content in parts.items()
        ),
    ]


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        bundle(
            csvs=snakemake.input.csvs,
            plan=snakemake.input.plan,
            coverage=snakemake.input.coverage,
            checks=snakemake.input.checks,
            trace=str(snakemake.input.trace or ""),
            output=snakemake.output[0],
        )
