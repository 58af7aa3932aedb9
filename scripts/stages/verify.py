"""Verdicts on implementations of one's own: the tests of tests/verify on each, and pages that say what is wrong.

Nothing is measured. Each implementation is tested in a process of its own, so that one that hangs or ends it costs only
itself.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas import DataFrame

from cs336_systems.implementations import FAMILIES, Implementation, parse
from cs336_systems.run.failure import describe_end
from cs336_systems.yaml_file import read_mapping

ROOT = Path(__file__).parents[2]
RIGHT, WRONG, NOT_THERE, CANNOT_BE_LOADED = "right", "wrong", "not there", "cannot be loaded"


@dataclass(frozen=True, kw_only=True)
class Case:
    """The finding of one test."""

    case: str
    outcome: str
    """passed, failed, unsupported or skipped."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The tests' verdict on one implementation, or of a family in which there is none."""

    family: str
    implementation: Implementation | None
    verdict: str
    reason: str = ""
    cases: tuple[Case, ...] = ()

    def of(self, outcome: str) -> list[Case]:
        """The cases with an outcome."""
        return [case for case in self.cases if case.outcome == outcome]


def read_implementations(content: Mapping[str, Any], source: str) -> list[tuple[str, Implementation]]:
    """The implementations that a mapping from families to names and paths names.

    Raises:
        ValueError: an unknown family, or an entry that is none, in one sentence that begins with the source.
    """
    found = []
    for family, paths in content.items():
        if family not in FAMILIES:
            raise ValueError(f"{source}: unknown key {family!r}; allowed: {', '.join(FAMILIES)}")
        if not isinstance(paths, dict):
            raise ValueError(f"{source}: {family} is {paths!r}; allowed: names with their package.module:name")
        for name, path in paths.items():
            try:
                found.append((family, parse(f"{name}={path}")))
            except ValueError as error:
                raise ValueError(f"{source}: {family}: {error}") from None
    return found


def verify(family: str, implementation: Implementation, folder: Path, log: IO[str], limit_s: int) -> Verdict:
    """Run the tests of a family on an implementation in a process of its own.

    Args:
        family: which tests.
        implementation: which one.
        folder: the working directory, from which modules are imported; where it is not the project's, the
            implementation has to be in it.
        log: where pytest's own report goes.
        limit_s: so long all of its tests may take.
    """
    outcomes = Path(log.name).with_name("verify_outcomes.jsonl")
    outcomes.write_text("")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    options = [f"--rootdir={ROOT}", f"--outcomes={outcomes.absolute()}", f"--implementation={implementation.text}"]
    if folder != ROOT:
        options.append(f"--from-folder={folder}")
    status = run([*command, *options, str(ROOT / f"tests/verify/test_{family}.py")], folder, log, limit_s)
    lines = [json.loads(line) for line in outcomes.read_text().splitlines()]
    outcomes.unlink()
    end = f"its process did not end within {limit_s} s" if status is None else f"its process {describe_end(status)}"
    found = judge(family, implementation, lines, end)
    student = "" if folder == ROOT else f"{folder.name}: "
    print(f"{student}{family} {implementation.name}: {found.verdict}", flush=True)
    return found


def run(command: Sequence[str], folder: Path, log: IO[str], limit_s: int) -> int | None:
    """Run pytest in a folder, and end all that it has started; its exit status, or None if it took too long."""
    path = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def judge(family: str, implementation: Implementation, lines: Iterable[Mapping[str, Any]], end: str) -> Verdict:
    """The verdict from what the tests have written, line by line, and from how their process ended."""
    cases: list[Case] = []
    told: dict[str, Any] = {}
    for line in lines:
        told = {**told, "begun": "", **line}
        if "case" in line:
            cases.append(Case(**line))
    if told.get("begun") or (cases and "finished" not in told):
        cases.append(Case(case=told["begun"] or "all cases", outcome="failed", reason=end))
    counts = Counter(case.outcome for case in cases)
    first = next((case for case in cases if case.outcome == "failed"), None)
    if not cases:
        verdict, reason = CANNOT_BE_LOADED, told.get("unloadable", end)
    elif first:
        verdict, reason = WRONG, f"{first.case}: {first.reason}"
    elif not counts["passed"]:
        verdict, reason = WRONG, f"it supports nothing that is tested: {cases[0].reason}"
    else:
        tried = len(cases) - counts["skipped"]
        unsupported = f"it does not support {counts['unsupported']} of {tried} cases"
        verdict, reason = RIGHT, unsupported if counts["unsupported"] else ""
    return Verdict(family=family, implementation=implementation, verdict=verdict, reason=reason, cases=tuple(cases))


def verdicts_on(names: Path, log: IO[str], limit_s: int) -> list[Verdict]:
    """The verdicts on what a file in a student's folder names, at least one for each family."""
    folder = names.absolute().parent
    try:
        found = read_implementations(read_mapping(names), names.name)
    except ValueError as error:
        reason = str(error).removeprefix(f"{names.parent}{os.sep}")
        print(f"{folder.name}: {CANNOT_BE_LOADED}: {reason}", flush=True)
        return [
            Verdict(family=family, implementation=None, verdict=CANNOT_BE_LOADED, reason=reason) for family in FAMILIES
        ]
    verdicts = []
    for family in FAMILIES:
        own = [implementation for its_family, implementation in found if its_family == family]
        verdicts += [verify(family, implementation, folder, log, limit_s) for implementation in own]
        if not own:
            verdicts.append(Verdict(family=family, implementation=None, verdict=NOT_THERE))
    return verdicts


def rows(verdicts: Iterable[Verdict], student: str) -> list[dict[str, str | int]]:
    """The rows of verify.csv."""
    return [
        {
            "student": student,
            "family": each.family,
            "implementation": each.implementation.name if each.implementation else "",
            "path": each.implementation.path if each.implementation else "",
            "verdict": each.verdict,
            **{outcome: len(each.of(outcome)) for outcome in ("passed", "failed", "unsupported", "skipped")},
            "reason": each.reason,
        }
        for each in verdicts
    ]


def write_page(path: Path, **content: Any) -> None:
    """Fill the template of the pages."""
    loader = FileSystemLoader(ROOT / "report")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(templates.get_template("verify.html.j2").render(families=FAMILIES, **content), encoding="utf-8")


def verify_all(
    implementations: Mapping[str, Mapping[str, str]],
    students: Sequence[Path],
    results: Path,
    log: IO[str],
    limit_s: int,
) -> tuple[list[dict[str, str | int]], str]:
    """Verify those of the configuration or, if there are students, what their files name; write pages into `results`.

    Returns:
        The rows of verify.csv, and a sentence.
    """
    page = results / "verify.html"
    if students:
        table = {file.parent.name: verdicts_on(file, log, limit_s) for file in students}
        for student, verdicts in table.items():
            own_page = results / f"verify/{student}.html"
            write_page(own_page, title=student, machine=results.name, verdicts=verdicts, table={})
        write_page(page, title="Verdicts on a class", machine=results.name, verdicts=[], table=table)
    else:
        named = read_implementations(implementations, "implementations")
        table = {"": [verify(family, implementation, ROOT, log, limit_s) for family, implementation in named]}
        write_page(page, title="Verdicts", machine=results.name, verdicts=table[""], table={})
    found = [row for student, verdicts in table.items() for row in rows(verdicts, student)]
    DataFrame(found).to_csv(results / "verify.csv", index=False)
    there = [row for row in found if row["verdict"] != NOT_THERE]
    right = [f"{row['student']} {row['family']} {row['implementation']}" for row in there if row["verdict"] == RIGHT]
    names = ", ".join(map(str.strip, right)) or "none"
    return found, f"{len(right)} of {len(there)} implementations are right: {names}; page: {page}"


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with Path(snakemake.log[0]).open("w", encoding="utf-8") as log_file:
        found, sentence = verify_all(
            implementations=snakemake.params.implementations,
            students=[Path(names) for names in snakemake.params.students],
            results=Path(snakemake.params.results),
            log=log_file,
            limit_s=snakemake.params.limit_s,
        )
    print(sentence, flush=True)
    if snakemake.params.strict and any(row["verdict"] in (WRONG, CANNOT_BE_LOADED) for row in found):
        sys.exit(f"{sentence}; and strict is true")
