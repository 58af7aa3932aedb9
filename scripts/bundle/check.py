"""Check whether the rows of a bundle can be believed, and print what passed, what failed, and what cannot be decided.

Launch: python -m scripts.bundle.check results/nvidia-h200/nvidia-h200.crate.zip

It exits with status 1 if anything failed. Nothing of the bundle is run or imported.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas
from pandas import DataFrame

from cs336_systems.record.machine import SOFTWARE
from cs336_systems.record.revisions import is_current
from cs336_systems.run.failure import printable
from scripts.bundle.make import CHECKS, COVERAGE, describe
from scripts.bundle.read import Bundle, limit, opened, without_folder
from scripts.card.checks import possible
from scripts.card.record import RECORDED, read_cards
from scripts.card.verdict import decide_in_order
from scripts.checks import Check
from scripts.stages.self_checks import all_checks
from scripts.stages.tables import planned_rows
from scripts.tools.archive import MB
from scripts.tools.log import shortened
from scripts.views.coverage import OUTCOMES, UNPLANNED, cover
from scripts.views.data import NOT_RUN, frame

PASSED, FAILED, UNDECIDED = "passed", "failed", "cannot be decided"
SHOWN = 3
"""Largest number of messages, files or commits in a line."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one aspect of a bundle."""

    aspect: str
    outcome: str
    """passed, failed, or cannot be decided."""
    detail: str

    def __str__(self) -> str:
        """A line of the table."""
        return f"{self.outcome:<18} {self.aspect:<12} {self.detail}"


def findings(bundle: Bundle) -> list[Finding]:
    """Outcomes of a bundle's aspects, in the order of the table."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return list(_findings(bundle))
    except Exception as error:  # rows that are valid one by one, but not together
        return [Finding("rows", FAILED, without_folder(error, bundle.folder))]


def _findings(bundle: Bundle) -> Iterator[Finding]:
    size = sum(map(len, bundle.files.values())) / MB
    yield Finding("rows", PASSED, f"{len(bundle.files)} files, {size:.1f} MB: names, SHA-256, schema and statistics")
    yield metadata(bundle)
    tables = {name: frame(name, measured) for name, measured in bundle.rows.items()}
    planned = {name: frame(name, planned_rows(bundle.plan, name, measured)) for name, measured in bundle.rows.items()}
    covered, checks = cover(bundle.plan, tables), list(all_checks(planned))
    every = pandas.concat([table for table in tables.values() if len(table)])
    yield machine(every)
    yield code(every)
    yield coverage(covered)
    yield Finding("self checks", *outcome_of(checks, "applicable self-checks of the report passed"))
    yield cards(bundle)
    yield claims(bundle, covered, checks)
    yield Finding("origin", UNDECIDED, "nothing is signed: rows that are made up consistently pass all of this")


def metadata(bundle: Bundle) -> Finding:
    """Compare the description with the one that these files and rows have."""
    graphs = (bundle.graph, describe(bundle.files, bundle.rows)["@graph"])
    described, expected = ({entity["@id"]: entity for entity in graph} for graph in graphs)
    wrong = sorted(
        f"{name}: {key}"
        for name in described.keys() | expected.keys()
        for key in described.get(name, {}).keys() | expected.get(name, {}).keys()
        if described.get(name, {}).get(key) != expected.get(name, {}).get(key)
    )
    if wrong or len(bundle.graph) > len(expected):
        return Finding("metadata", FAILED, f"not of these files and rows: {shortened(wrong, SHOWN)}")
    return Finding("metadata", PASSED, "Workflow Run RO-Crate of these files, sizes, SHA-256, times and versions")


def machine(table: DataFrame) -> Finding:
    """Name the machine and its versions; different processors count as different machines."""
    values = {name: [str(value) for value in table[name].unique() if value != ""] for name in ("gpu", "cpu", *SOFTWARE)}
    counts = " and ".join(str(count) for count in sorted(table["gpu_count"].unique()) if count)
    versions = [f"{title} {' and '.join(values[name])}" for name, title in SOFTWARE.items() if values[name]]
    gpus = [f"{counts} x {gpu}" for gpu in values["gpu"]] or ["no GPU"]
    detail = ", ".join([*gpus, *values["cpu"], *versions])
    if len(values["cpu"]) > 1:
        return Finding("machine", UNDECIDED, f"several processors, so perhaps several machines: {detail}")
    return Finding("machine", PASSED, detail)


def code(table: DataFrame) -> Finding:
    """Count the rows measured by this clone's code, and name the commits of the others."""
    # A user's own code is not checked: it is not here.
    current = table["revisions"].map(lambda text: ":" not in text and bool(is_current(text)))
    others = Counter(table.loc[~current, "git_commit"])
    detail = f"{current.sum()} of {len(table)} rows are by the code of this clone"
    if not others:
        return Finding("code", PASSED, detail)
    commits = shortened([commit[:7] or "unknown" for commit, _ in others.most_common()], SHOWN)
    return Finding("code", UNDECIDED, f"{detail}; {others.total()} by other code, of commits {commits}")


def coverage(covered: DataFrame) -> Finding:
    """Count the planned cells that were measured, or have a reason why not."""
    total = covered.sum(numeric_only=True)
    reasons = [f"{total[name]} {name}" for name in (*OUTCOMES[1:], UNPLANNED) if total[name]]
    outcome = FAILED if total[NOT_RUN] == total["planned"] else UNDECIDED if total[NOT_RUN] else PASSED
    measured = f"{total['ok']} of {total['planned']} planned cells measured"
    return Finding("coverage", outcome, ", ".join([measured, *reasons]))


def outcome_of(checks: Sequence[Check], of_what: str) -> tuple[str, str]:
    """The outcome of several self-checks, and those that failed."""
    applicable = [check for check in checks if check.outcome != "not applicable"]
    failed = [f"{check.check}: {check.detail}" for check in applicable if check.outcome == FAILED]
    detail = f"{len(applicable) - len(failed)} of {len(applicable)} {of_what}"
    outcome = FAILED if failed else PASSED if applicable else UNDECIDED
    return outcome, "; ".join(filter(None, [detail, shortened(failed, SHOWN, "; ")]))


def cards(bundle: Bundle) -> Finding:
    """Check cards against the data sheet; their verdicts are based on earlier cards, here and in the bundle."""
    if not bundle.cards:
        return Finding("cards", UNDECIDED, "none, which `snakemake card` makes")
    verdicts = decide_in_order({**read_cards(RECORDED / bundle.plan.machine, bundle.plan.machine), **bundle.cards})
    outcomes = [f"{name} ({verdicts[name].outcome})" for name in bundle.cards]
    outcome, detail = outcome_of(possible(bundle.cards), "applicable limits of the data sheet kept")
    return Finding("cards", outcome, f"{shortened(outcomes, SHOWN)}: {detail}")


def claims(bundle: Bundle, covered: DataFrame, checks: Sequence[Check]) -> Finding:
    """Compare the bundle's coverage and self-checks with the results of this clone's code for its rows."""
    own = {COVERAGE: covered, CHECKS: DataFrame([asdict(check) for check in checks])}
    others = [name for name, content in own.items() if bundle.files[name] != content.to_csv(index=False).encode()]
    if others:
        return Finding("verdicts", UNDECIDED, f"not as this clone's code finds them: {', '.join(others)}")
    return Finding("verdicts", PASSED, "its coverage and self-checks are as this clone's code finds them")


def main(path: str) -> None:
    """Print the findings on a bundle.

    Raises:
        SystemExit: one of them failed, or it is not a bundle.
    """
    try:
        with opened(Path(path)) as bundle:
            results = findings(bundle)
    except ValueError as error:
        sys.exit(printable(str(error)))
    print("\n".join(printable(str(finding)) for finding in results))
    if failed := [finding.aspect for finding in results if finding.outcome == FAILED]:
        sys.exit(printable(f"{path}: failed: {', '.join(failed)}"))
    print(printable(f"{path}: nothing failed"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m scripts.bundle.check FILE checks one bundle, as time and memory are limited per process")
    limit(sys.argv[1])
    main(sys.argv[1])
