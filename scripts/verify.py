"""Verdicts on any user's implementations, and pages that explain the errors. Nothing is measured."""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas import DataFrame

from cs336_systems.handed_over import folder_of, handed_over, implementations_in, read_implementations
from cs336_systems.implementations import FAMILIES, Implementation
from cs336_systems.verify import verdict as judging
from cs336_systems.verify.folder import commit_of, name_of, read_only_copy
from cs336_systems.verify.launcher import Launcher
from cs336_systems.verify.verdict import CANNOT_BE_LOADED, LIMIT_S, NOT_THERE, RIGHT, UNSUPPORTED, Verdict

ROOT = Path(__file__).parents[1]
WRITING = threading.Lock()


def one(
    family: str, implementation: Implementation, folder: Path, log: Path, launcher: Launcher, limit_s: float
) -> Verdict:
    """The verdict on one implementation, which is also printed."""
    verdict = judging.verify(family, implementation, folder, log, launcher, limit_s)
    student = "" if folder == ROOT else f"{name_of(folder)}: "
    print(f"{student}{family} {implementation.name}: {verdict.verdict}: {verdict.reason}", flush=True)
    return verdict


def verdicts_on(names: Path, log: IO[str], limit_s: float, launcher: Launcher | None = None) -> list[Verdict]:
    """The verdicts on the implementations named by a file in a student's folder, at least one for each family."""
    if launcher is None:
        with Launcher() as launcher:
            return verdicts_on(names, log, limit_s, launcher)
    folder = folder_of(names)
    try:
        named = implementations_in(names)
        with read_only_copy(folder) as copy:
            verdicts = [one(family, each, copy, Path(log.name), launcher, limit_s) for family, each in named]
    except ValueError as error:
        reason = judging.quoted(str(error).removeprefix(f"{names.parent}/"))
        print(f"{name_of(folder)}: {CANNOT_BE_LOADED}: {reason}", flush=True)
        return [
            Verdict(family=family, implementation=None, verdict=CANNOT_BE_LOADED, reason=reason) for family in FAMILIES
        ]
    missing = set(FAMILIES) - {each.family for each in verdicts}
    absent = [Verdict(family=family, implementation=None, verdict=NOT_THERE) for family in missing]
    return sorted([*verdicts, *absent], key=lambda each: [*FAMILIES].index(each.family))


def rows(verdicts: Iterable[Verdict], student: str, commit: str) -> list[dict[str, str | int]]:
    """The rows of verify.csv."""
    outcomes = ("passed", "failed", "unsupported", "cannot run here", "crashed", "timed out")
    return [
        {
            "student": student,
            "commit": commit,
            "family": each.family,
            "implementation": each.implementation.name if each.implementation else "",
            "path": each.implementation.path if each.implementation else "",
            "verdict": each.verdict,
            "handout": each.count("handout"),
            "beyond": each.count("beyond"),
            **{outcome: len(each.of(outcome)) for outcome in outcomes},
            "reason": each.reason,
        }
        for each in verdicts
    ]


def write_page(path: Path, **content: Any) -> None:
    """Fill the template of the pages."""
    loader = FileSystemLoader(ROOT / "report")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    text = templates.get_template("verify.html.j2").render(families=shown_families(content), made=made, **content)
    path.write_text(text, encoding="utf-8")


def shown_families(content: Mapping[str, Any]) -> list[str]:
    """The families with at least one implementation."""
    verdicts = [*content["verdicts"], *(each for theirs in content["table"].values() for each in theirs)]
    there = {each.family for each in verdicts if each.verdict != NOT_THERE}
    return [family for family in FAMILIES if family in there]


def verify_all(
    implementations: Mapping[str, Any],
    students: Sequence[Path],
    results: Path,
    log: IO[str],
    limit_s: float,
    most_at_once: int,
) -> tuple[list[dict[str, str | int]], str]:
    """Verify the configuration's implementations or, if there are students, theirs, several at a time; write pages.

    Returns:
        The rows of verify.csv, and a sentence.
    """
    page = results / "verify.html"
    if students:
        table: dict[str, list[Verdict]] = {}
        commits = {name_of(folder_of(file)): commit_of(folder_of(file)) for file in students}

        def judge_student(file: Path) -> None:
            launcher = launchers.get()
            try:
                verdicts = verdicts_on(file, log, limit_s, launcher)
            finally:
                launchers.put(launcher)  # or the other students would wait for it
            with WRITING:  # the results so far, after each student
                student = name_of(folder_of(file))
                table[student] = verdicts
                own = results / f"verify/{student}.html"
                write_page(own, title=student, machine=results.name, verdicts=verdicts, table={}, commits=commits)
                shown = dict(sorted(table.items()))
                write_page(page, title="A class", machine=results.name, verdicts=[], table=shown, commits=commits)

        at_once = min(len(students), most_at_once)
        launchers: SimpleQueue[Launcher] = SimpleQueue()
        with ExitStack() as stack, ThreadPoolExecutor(at_once) as pool:
            for _ in range(at_once):
                launchers.put(stack.enter_context(Launcher()))
            list(pool.map(judge_student, students))
        all_rows = [row for student in sorted(table) for row in rows(table[student], student, commits[student])]
    else:
        verdicts = on_named(implementations, log, limit_s)
        write_page(page, title="Verdicts", machine=results.name, verdicts=verdicts, table={}, commits={})
        all_rows = rows(verdicts, "", "")
    DataFrame(all_rows).to_csv(results / "verify.csv", index=False)
    there = [row for row in all_rows if row["verdict"] not in (NOT_THERE, UNSUPPORTED)]
    right = [f"{row['student']} {row['family']} {row['implementation']}" for row in there if row["verdict"] == RIGHT]
    names = f": {', '.join(map(str.strip, right))}" if right and not students else ""
    return all_rows, f"{len(right)} of {len(there)} implementations are right{names}; page: {page}"


def on_named(implementations: Mapping[str, Any], log: IO[str], limit_s: float) -> list[Verdict]:
    """The verdicts on the configuration's implementations: adapters in a folder, and single ones in the project's."""
    single = {family: paths for family, paths in implementations.items() if family != "adapters"}
    file = handed_over(Path(implementations["adapters"]))  # None for "none"; the plan has refused what is neither.
    verdicts = verdicts_on(file, log, limit_s) if file else []
    named = read_implementations(single, "implementations")
    with Launcher() as launcher:
        return verdicts + [on_single(family, each, Path(log.name), launcher, limit_s) for family, each in named]


def on_single(family: str, implementation: Implementation, log: Path, launcher: Launcher, limit_s: float) -> Verdict:
    """The verdict on an implementation in the project's folder, or in the folder of its path."""
    if not implementation.folder:
        return one(family, implementation, ROOT, log, launcher, limit_s)
    path = implementation.path.removeprefix(f"{implementation.folder}/")
    with read_only_copy(Path(implementation.folder)) as copy:
        return one(family, replace(implementation, path=path), copy, log, launcher, limit_s)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with Path(snakemake.log[0]).open("w", encoding="utf-8") as log_file:
        all_rows, sentence = verify_all(
            implementations=snakemake.params.implementations,
            students=[Path(names) for names in snakemake.params.students],
            results=Path(snakemake.params.results),
            log=log_file,
            limit_s=LIMIT_S,
            most_at_once=snakemake.threads,
        )
    print(sentence, flush=True)
    faults = [row for row in all_rows if row["verdict"] not in (RIGHT, NOT_THERE, UNSUPPORTED)]
    if snakemake.params.strict and faults:
        sys.exit(f"{sentence}; and strict is true")
