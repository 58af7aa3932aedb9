"""Pack a machine's results as one file that others can check: a zipped RO-Crate of the Workflow Run profile.

The same results give the same bytes: all times in it are from the rows.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

from cs336_systems.experiments.registry import EXPERIMENTS, KINDS
from cs336_systems.plan import read_plan
from cs336_systems.record.machine import SOFTWARE
from cs336_systems.record.rows import digest_path, read_jobs
from cs336_systems.record.validation import Row
from cs336_systems.yaml_file import read_mapping
from scripts.card.record import read_cards
from scripts.tools.archive import DATE, pack
from scripts.tools.log import Refused, log_to

METADATA, PLAN, COVERAGE, CHECKS = "ro-crate-metadata.json", "plan.json", "coverage.csv", "checks.csv"
CITATION, LICENSE, WORKFLOW = "CITATION.cff", "LICENSE", "Snakefile"
REQUIRED = (METADATA, PLAN, COVERAGE, CHECKS, CITATION, LICENSE, WORKFLOW)
STEM = r"(?!(?i:con|prn|aux|nul|com\d|lpt\d)\b)\w[\w.,=+-]{0,120}"
"""A job's name, which no operating system treats as a device, a hidden file or a folder."""
NAME = re.compile(
    rf"{'|'.join(map(re.escape, REQUIRED))}"
    rf"|raw/({'|'.join(KINDS)})/{STEM}\.csv(\.sha256)?|traces/{STEM}\.json\.gz",
    re.ASCII,
)
FORMATS = {".csv": "text/csv", ".json": "application/json", ".gz": "application/gzip"}
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
Files = Mapping[str, bytes]
Rows = Mapping[str, Sequence[Row]]


def bundle(csvs: Sequence[str], plan: str, coverage: str, checks: str, output: str) -> None:
    """Write a bundle of jobs' CSV files, each with its SHA-256 next to it, and of the cards and traces in their folder.

    Raises:
        ValueError: no CSV file, a file that no measurement on the plan's machine wrote, or a name that is not allowed
            in a bundle.
    """
    machine = read_plan(Path(plan)).machine
    if not csvs:
        raise Refused(f"nothing is measured on {machine!r} yet; allowed: at least one CSV file of an experiment")
    paths = [Path(csv) for csv in csvs]
    folder = paths[0].parents[2]
    rows = read_rows(paths, machine)
    read_cards(folder, machine)
    files = {name: path.read_bytes() for name, path in measured_files(folder, paths).items()}
    sources = {PLAN: plan, COVERAGE: coverage, CHECKS: checks} | {name: name for name in (CITATION, LICENSE, WORKFLOW)}
    files |= {name: Path(path).read_bytes() for name, path in sources.items()}
    for name in files:
        if not NAME.fullmatch(name):
            raise Refused(f"{name!r} does not belong in a bundle; allowed: the files in docs/sharing-results.md")
    files[METADATA] = json.dumps(describe(files, rows), indent=1, sort_keys=True, ensure_ascii=False).encode()
    pack(Path(output), files, date=max(DATE, max(map(measured_at, each(rows))).timetuple()[:6]))


def measured_files(folder: Path, csvs: Sequence[Path]) -> dict[str, Path]:
    """Name the files of a machine's measurements by their names in a bundle, each digest before its CSV file."""
    csvs = [*csvs, *sorted(folder.glob("raw/card/*.csv"))]
    files = [*map(digest_path, csvs), *csvs, *sorted(folder.glob("traces/*.json.gz"))]
    return {path.relative_to(folder).as_posix(): path for path in files}


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
    """When a row's job ended, in UTC; an OverflowError if no calendar has that time."""
    return datetime.fromisoformat(row.utc).astimezone(UTC)


def describe(files: Files, rows: Rows) -> dict[str, Any]:
    """The crate's description in JSON-LD, which can be reproduced from the files."""
    crate = ROCrate(version="1.1")
    # The vocabulary of RO-Crate 1.1 is older than sha256.
    crate.metadata.extra_terms["sha256"] = "https://schema.org/sha256"
    for name, content in sorted(files.items()):
        if name == WORKFLOW:
            crate.add_workflow(dest_path=name, properties=of_file(name, content), main=True, lang="snakemake")
        elif name != METADATA:
            crate.add_file(dest_path=name, properties=of_file(name, content))

    def add(identifier: str, kind: str, **properties: Any) -> ContextEntity:
        return crate.add(ContextEntity(crate, identifier, {"@type": kind, **properties}))

    license = read_mapping(Path(CITATION))["license"]
    times = sorted(measured_at(row).isoformat() for row in each(rows))
    machine = " and ".join(sorted({row.gpu or vars(row)["cpu"] for row in each(rows)}))
    title = f"Measurements on {machine}"
    run = {
        "startTime": times[0],
        "endTime": times[-1],
        "instrument": crate.mainEntity,
        "object": crate.get(PLAN),
        "result": crate.root_dataset,
    }
    of_the_root = {
        "name": title,
        "description": f"{len(times)} rows of the experiments of Stanford CS336, assignment 2, by cs336-systems",
        "datePublished": times[-1],
        "license": add(f"https://spdx.org/licenses/{license}", "CreativeWork", name=license),
        "citation": crate.get(CITATION),
        "conformsTo": [add(profile, "CreativeWork", name=name) for profile, name in PROFILES.items()],
        "mentions": [
            add("#measurement", "CreateAction", name=title, **run),
            add("#machine", "IndividualProduct", name=machine),
        ],
        "softwareRequirements": [
            add(f"#{column}-{quote(version)}", "SoftwareApplication", name=name, version=version)
            for column, name in SOFTWARE.items()
            for version in sorted({vars(row)[column] for row in each(rows)} - {""})
        ],
    }
    for key, value in of_the_root.items():
        crate.root_dataset[key] = value
    return dict(crate.metadata.generate())


def of_file(name: str, content: bytes) -> dict[str, str]:
    """Size, format and SHA-256 of a file."""
    return {
        "contentSize": str(len(content)),
        "encodingFormat": FORMATS.get(Path(name).suffix, "text/plain"),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        bundle(
            csvs=snakemake.input.csvs,
            plan=snakemake.input.plan,
            coverage=snakemake.input.coverage,
            checks=snakemake.input.checks,
            output=snakemake.output[0],
        )
