"""Check a bundle that anybody may have made, without running or importing anything of it.

Launch: python -m scripts.check_bundle results/nvidia-h200/nvidia-h200.crate.zip

It prints what passed, what failed, and what cannot be told, and exits with status 1 if anything failed.
"""

import contextlib
import csv
import dataclasses
import gzip
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas
from pandas import DataFrame
from rocrate.metadata import find_root_entity_id

from cs336_systems.discovery import modules
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.measure.trace_file import read_trace
from cs336_systems.plan import Plan, read_plan, recorded_modules
from cs336_systems.record.digests import read_later
from cs336_systems.record.rows import Provenance, digest_path
from cs336_systems.record.source import source_digest
from scripts.archive import LARGEST_ENTRY_MB, MB, read_archive
from scripts.bundle import (
    CHECKS,
    CONSTRAINTS,
    COVERAGE,
    METADATA,
    PIN,
    PLAN,
    REQUIRED,
    ROOT,
    SOFTWARE,
    each,
    entities,
    fault_of_name,
    read_rows,
)
from scripts.checks import Check, checks_of
from scripts.coverage import NOT_RUN, OUTCOMES, UNPLANNED, cover
from scripts.limits import TooExpensive, limited
from scripts.log import printable
from scripts.tables import planned_cells, renamed, split
from scripts.views.completeness import cells_of
from scripts.views.data import frame
from scripts.views.own import own_rows

PASSED, FAILED, CANNOT_TELL = "passed", "failed", "cannot tell"
MOST_SECONDS = 300
"""Processor time of a check: thirty times that of a recorded machine."""
MOST_GB = 4
"""Address space of a check, above what is there before."""
DATA_SHEET = "scripts.checks.data_sheet"
PROFILE = "https://w3id.org/ro/crate/1.1"
LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SHOWN = 3
"""So many complaints, files or commits stand in a line."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one aspect of a bundle."""

    aspect: str
    outcome: str
    """passed, failed, or cannot tell."""
    detail: str

    def __str__(self) -> str:
        """A line of the table."""
        return f"{self.outcome:<12} {self.aspect:<12} {self.detail}"


class Bundle:
    """The files of a bundle, read and validated; whether they can be believed is judged later."""

    def __init__(self, files: Mapping[str, bytes], folder: Path) -> None:
        """Write the files below an empty folder, as a machine's results, and read them.

        Raises:
            ValueError: a file is missing, or is not what its name says, in one sentence.
        """
        self.files = files
        if missing := [name for name in REQUIRED if name not in files]:
            raise ValueError(f"it has no {missing[0]}; allowed: what `snakemake bundle` wrote")
        self.entities = read_metadata(files[METADATA])
        self.plan = read_foreign_plan(files[PLAN], folder / PLAN)
        self.folder = folder / self.plan.machine
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        csvs = sorted(self.folder.glob("raw/*/*.csv"))
        digests = sorted(self.folder.glob("raw/*/*.csv.sha256"))
        if not csvs or digests != [digest_path(path) for path in csvs]:
            raise ValueError("it has no CSV file, or not one for each SHA-256; allowed: what `snakemake bundle` wrote")
        self.rows = read_rows(csvs, self.plan.machine)
        self.csvs = csvs
        for path in self.folder.glob("traces/*"):
            check_trace(path)
        for line in decoded(files.get(CONSTRAINTS, b""), CONSTRAINTS).splitlines():
            if not line.startswith("#") and not PIN.fullmatch(line):
                raise ValueError(f"{CONSTRAINTS}: has the line {line[:80]!r}; allowed: package==version, or a comment")
        self.later = read_later(sorted(Path("recorded").glob("*/same_code.csv")))
        self.claims = {name: decoded(files[name], name) for name in (CHECKS, COVERAGE)}

    @cached_property
    def provenance(self) -> DataFrame:
        """The columns that a job's rows share, a line for each row."""
        names = [field.name for field in dataclasses.fields(Provenance)]
        return DataFrame([[getattr(row, name) for name in names] for row in each(self.rows)], columns=names)

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """The table of each experiment's planned cells, as the report has it."""
        return {name: self._frames(name)[0] for name in self.rows}

    @cached_property
    def coverage(self) -> DataFrame:
        """Planned against measured cells."""
        return cover(self.plan, {name: pandas.concat(self._frames(name)) for name in self.rows})

    @cached_property
    def checks(self) -> dict[str, list[Check]]:
        """The outcomes of each module's self-checks."""
        return {module: outcomes(module, self.tables) for module in modules("scripts.checks")}

    def _frames(self, experiment: str) -> list[DataFrame]:
        kind = EXPERIMENTS[experiment]
        rows = [renamed(row, self.later) for row in self.rows[experiment]]
        parts = split(kind, rows, planned_cells(self.plan, experiment))
        return [frame(experiment, rows) for rows in parts]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle, in a temporary folder of its own and within limits of time and memory.

    Raises:
        ValueError: it is not one, in one sentence.
    """
    with tempfile.TemporaryDirectory() as folder, limited(MOST_SECONDS, MOST_GB):
        try:
            yield Bundle(read_archive(path, fault_of_name), Path(folder))
        except ValueError as error:
            sentence = re.sub(rf"{re.escape(folder)}/([a-z0-9-]+/)?", "", str(error))
            raise ValueError(sentence if sentence.startswith(f"{path}") else f"{path}: {sentence}") from None


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
        metadata, root = find_root_entity_id(entities)
        if (root, entities[metadata]["conformsTo"]) != (ROOT, {"@id": PROFILE}):
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


def outcomes(module: str, tables: Mapping[str, DataFrame]) -> list[Check]:
    """The self-checks of a module, or a failed one if rows that are valid one by one make no sense together."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return list(checks_of(importlib.import_module(module), tables))
    except (MemoryError, TooExpensive):
        raise
    except Exception as error:
        return [Check(f"{module} can be computed", FAILED, f"{type(error).__name__}: {error}")]


def judged(checks: Sequence[Check], of_what: str) -> tuple[str, str]:
    """The outcome of several self-checks, and those that failed."""
    applicable = [check for check in checks if check.outcome != "not applicable"]
    failed = [f"{check.check}: {check.detail}" for check in applicable if check.outcome == FAILED]
    detail = f"{len(applicable) - len(failed)} of {len(applicable)} {of_what}"
    outcome = FAILED if failed else PASSED if applicable else CANNOT_TELL
    return outcome, "; ".join([detail, *shortened(failed)])


def shortened(names: Sequence[str]) -> list[str]:
    """The first few, and how many more."""
    return [*names[:SHOWN], *([f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else [])]


def archive(bundle: Bundle) -> tuple[str, str]:
    """Count the files; whoever is here has only plain ones, within the limits."""
    size = sum(map(len, bundle.files.values()))
    return PASSED, f"{len(bundle.files)} plain files, {size / MB:.1f} MB, all with names of a bundle's"


def rows(bundle: Bundle) -> tuple[str, str]:
    """Count the rows, whose schema, statistics and SHA-256 were checked as they were read."""
    return PASSED, f"{len(bundle.provenance)} rows in {len(bundle.csvs)} CSV files: schema, statistics and SHA-256"


def metadata(bundle: Bundle) -> tuple[str, str]:
    """Compare the description with the one that these files and rows have."""
    expected = entities(bundle.files, bundle.rows)
    wrong = [
        f"{entity['@id']}: {key}"
        for entity in expected
        for key, value in entity.items()
        if bundle.entities.get(entity["@id"], {}).get(key) != value
    ]
    described = {entity["@id"] for entity in expected if entity["@type"] == "File"}
    parts = bundle.entities[ROOT].get("hasPart")
    if not isinstance(parts, list) or parts != [{"@id": name} for name in sorted(described)]:
        wrong.append(f"{ROOT}: hasPart")
    if wrong:
        return FAILED, f"not of these files and rows: {', '.join(shortened(wrong))}"
    return PASSED, "RO-Crate 1.1 of these files, sizes, SHA-256, times and versions"


def machine(bundle: Bundle) -> tuple[str, str]:
    """Name the machine and its versions; several processors are several machines."""
    shared = bundle.provenance
    found = {name: [value for value in shared[name].unique() if value != ""] for name in ("gpu", "cpu", *SOFTWARE)}
    gpus = " and ".join(str(count) for count in sorted(shared["gpu_count"].unique()) if count)
    name = f"{gpus} x {found['gpu'][0]}" if found["gpu"] else "no GPU"
    versions = [
        f"{title} {' and '.join(map(str, found[column]))}" for column, title in SOFTWARE.items() if found[column]
    ]
    detail = ", ".join([name, *map(str, found["cpu"]), *versions])
    if len(found["cpu"]) > 1:
        return CANNOT_TELL, f"several processors, so perhaps several machines: {detail}"
    return PASSED, detail


def code(bundle: Bundle) -> tuple[str, str]:
    """Compare the digests of the code that measured with those of this clone's."""
    same, others, unknown = 0, Counter[str](), 0
    for name, table in bundle.tables.items():
        own = own_rows(table)
        unknown += len(bundle.rows[name]) - len(table) + int(own.sum())
        expected = digests(bundle.plan, name)
        known = table[~own]
        for cell, digest, commit in zip(
            cells_of(name, known), known["source_digest"], known["git_commit"], strict=True
        ):
            if digest == expected[cell]:
                same += 1
            else:
                others[commit] += 1
    detail = f"{same} of {len(bundle.provenance)} rows by the code of this clone"
    if others:
        commits = [f"{commit[:7] or 'unknown'}{in_history(commit)}" for commit, _ in others.most_common()]
        detail += f"; {others.total()} by earlier or other code, of commits {', '.join(shortened(commits))}"
    if unknown:
        detail += f"; {unknown} unknown: not planned, or of implementations that are not here"
    return CANNOT_TELL if others or unknown else PASSED, detail


def digests(plan: Plan, experiment: str) -> dict[tuple[Any, ...], str]:
    """The digest that this clone's code gives each planned cell of an experiment."""
    known = cache(lambda modules, unused: source_digest(*modules, without=unused))
    return {
        dataclasses.astuple(cell): known(*recorded_modules(job.cells, None))
        for job in plan.jobs.get(experiment, {}).values()
        for cell in job.cells
    }


def in_history(commit: str) -> str:
    """Whether a commit is in this clone's history, in parentheses; nothing where Git cannot tell."""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return ""
    try:
        asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
        status = subprocess.run(asked, capture_output=True, check=False).returncode
    except OSError:
        return ""
    return " (in this clone's history)" if status == 0 else " (not in this clone's history)"


def coverage(bundle: Bundle) -> tuple[str, str]:
    """Count the planned cells that were measured, or have a reason why not."""
    total = bundle.coverage.sum(numeric_only=True)
    reasons = [f"{total[name]} {name}" for name in (*OUTCOMES[1:], UNPLANNED) if total[name]]
    detail = ", ".join([f"{total['ok']} of {total['planned']} planned cells measured", *reasons])
    if total[NOT_RUN] == total["planned"]:
        return FAILED, detail
    return CANNOT_TELL if total[NOT_RUN] else PASSED, detail


def self_checks(bundle: Bundle) -> tuple[str, str]:
    """Judge the report's self-checks, but for those by the data sheet."""
    checks = [check for module, found in bundle.checks.items() if module != DATA_SHEET for check in found]
    return judged(checks, "applicable self-checks of the report passed")


def data_sheet(bundle: Bundle) -> tuple[str, str]:
    """Judge what the data sheet allows."""
    gpu = next(iter(bundle.provenance["gpu"].unique()))
    if not gpu_of(gpu):
        return CANNOT_TELL, f"none is listed for {gpu or 'a CPU'}"
    return judged(bundle.checks[DATA_SHEET], f"applicable limits of {gpu} kept")


def verdicts(bundle: Bundle) -> tuple[str, str]:
    """Compare the verdicts in the bundle with those of this clone's code on its rows."""
    claimed = [(row.get("check"), row.get("outcome")) for row in csv.DictReader(io.StringIO(bundle.claims[CHECKS]))]
    found = [(check.check, check.outcome) for checks in bundle.checks.values() for check in checks]
    other = sum((Counter(claimed) - Counter(found)).values())
    if other or bundle.claims[COVERAGE] != bundle.coverage.to_csv(index=False):
        return CANNOT_TELL, f"its coverage, or {other} of its self-checks, are not as this clone's code finds them"
    return PASSED, "its coverage and self-checks are as this clone's code finds them"


def origin(bundle: Bundle) -> tuple[str, str]:
    """Say what no check can notice."""
    return CANNOT_TELL, "nothing is signed: rows that are made up consistently pass all of this"


ASPECTS = (archive, rows, metadata, machine, code, coverage, self_checks, data_sheet, verdicts, origin)


def findings(bundle: Bundle) -> list[Finding]:
    """Outcomes of a bundle's aspects, in the order of the table."""
    return [Finding(judge.__name__.replace("_", " "), *judge(bundle)) for judge in ASPECTS]


def check(path: Path) -> list[Finding]:
    """Open a bundle and judge it; raises as `opened` does."""
    with opened(path) as bundle:
        return findings(bundle)


def main(path: str) -> None:
    """Print the findings on a bundle.

    Raises:
        SystemExit: one of them is a failure, or it is no bundle.
    """
    try:
        found = check(Path(path))
    except (ValueError, TooExpensive) as error:
        sys.exit(printable(str(error)))
    print("\n".join(printable(str(finding)) for finding in found))
    if failed := [finding.aspect for finding in found if finding.outcome == FAILED]:
        sys.exit(printable(f"{path}: failed: {', '.join(failed)}"))


if __name__ == "__main__":
    main(sys.argv[1])
