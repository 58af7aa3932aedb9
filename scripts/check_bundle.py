"""Judge whether the rows of a bundle can be believed, and print what passed, what failed, and what cannot be told.

Launch: python -m scripts.check_bundle results/nvidia-h200/nvidia-h200.crate.zip

It exits with status 1 if anything failed. Nothing of the bundle is run or imported.
"""

import csv
import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.machine import SOFTWARE
from cs336_systems.record.revisions import is_current
from scripts.archive import MB
from scripts.bundle import entities
from scripts.bundle_evidence import Evidence
from scripts.checks import Check
from scripts.coverage import OUTCOMES, UNPLANNED
from scripts.limits import TooExpensive
from scripts.log import printable, shortened
from scripts.read_bundle import Bundle, opened
from scripts.views.data import NOT_RUN

PASSED, FAILED, CANNOT_TELL = "passed", "failed", "cannot tell"
DATA_SHEET = "scripts.checks.data_sheet"
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


def judged(checks: Sequence[Check], of_what: str) -> tuple[str, str]:
    """The outcome of several self-checks, and those that failed."""
    applicable = [check for check in checks if check.outcome != "not applicable"]
    failed = [f"{check.check}: {check.detail}" for check in applicable if check.outcome == FAILED]
    detail = f"{len(applicable) - len(failed)} of {len(applicable)} {of_what}"
    outcome = FAILED if failed else PASSED if applicable else CANNOT_TELL
    return outcome, "; ".join(filter(None, [detail, shortened(failed, SHOWN, "; ")]))


def archive(evidence: Evidence) -> tuple[str, str]:
    """Count the files; whoever is here has only plain ones, within the limits."""
    size = sum(map(len, evidence.bundle.files.values()))
    return PASSED, f"{len(evidence.bundle.files)} plain files, {size / MB:.1f} MB, all with names of a bundle's"


def rows(evidence: Evidence) -> tuple[str, str]:
    """Count the rows, whose schema, statistics and SHA-256 were checked as they were read."""
    csvs = evidence.bundle.csvs
    return PASSED, f"{len(evidence.provenance)} rows in {len(csvs)} CSV files: schema, statistics and SHA-256"


def metadata(evidence: Evidence) -> tuple[str, str]:
    """Compare the description with the one that these files and rows have."""
    expected = entities(evidence.bundle.files, evidence.bundle.rows)
    wrong = [
        f"{entity['@id']}: {key}"
        for entity in expected
        for key, value in entity.items()
        if evidence.bundle.entities.get(entity["@id"], {}).get(key) != value
    ]
    if wrong:
        return FAILED, f"not of these files and rows: {shortened(wrong, SHOWN)}"
    return PASSED, "RO-Crate 1.1 of these files, sizes, SHA-256, times and versions"


def machine(evidence: Evidence) -> tuple[str, str]:
    """Name the machine and its versions; several processors are several machines."""
    shared = evidence.provenance
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


def code(evidence: Evidence) -> tuple[str, str]:
    """Compare the revisions of the code that measured with those of this clone's."""
    rows = evidence.provenance
    # Of a user's own code nothing is looked for: it is not here.
    current = rows["revisions"].map(lambda text: None if ":" in text else is_current(text))
    others = Counter[str](rows.loc[current.eq(False), "git_commit"])
    unknown = int(current.isna().sum())
    detail = f"{int(current.eq(True).sum())} of {len(rows)} rows by the code of this clone"
    if others:
        commits = [f"{commit[:7] or 'unknown'}{in_history(commit)}" for commit, _ in others.most_common()]
        detail += f"; {others.total()} by earlier or other code, of commits {shortened(commits, SHOWN)}"
    if unknown:
        detail += f"; {unknown} unknown: of implementations that are not here"
    return CANNOT_TELL if others or unknown else PASSED, detail


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


def coverage(evidence: Evidence) -> tuple[str, str]:
    """Count the planned cells that were measured, or have a reason why not."""
    total = evidence.coverage.sum(numeric_only=True)
    reasons = [f"{total[name]} {name}" for name in (*OUTCOMES[1:], UNPLANNED) if total[name]]
    detail = ", ".join([f"{total['ok']} of {total['planned']} planned cells measured", *reasons])
    if total[NOT_RUN] == total["planned"]:
        return FAILED, detail
    return CANNOT_TELL if total[NOT_RUN] else PASSED, detail


def self_checks(evidence: Evidence) -> tuple[str, str]:
    """Judge the report's self-checks, but for those by the data sheet."""
    checks = [check for module, found in evidence.checks.items() if module != DATA_SHEET for check in found]
    return judged(checks, "applicable self-checks of the report passed")


def data_sheet(evidence: Evidence) -> tuple[str, str]:
    """Judge what the data sheet allows."""
    gpu = next(iter(evidence.provenance["gpu"].unique()))
    if not gpu_of(gpu):
        return CANNOT_TELL, f"none is listed for {gpu or 'a CPU'}"
    return judged(evidence.checks[DATA_SHEET], f"applicable limits of {gpu} kept")


def cards(evidence: Evidence) -> tuple[str, str]:
    """Judge the cards by the data sheet; that they have their rows and say what those give was checked in reading."""
    if not (cards := evidence.bundle.cards):
        return CANNOT_TELL, "none, which `snakemake card` makes"
    outcome, detail = judged(evidence.card_checks, "applicable limits of the data sheet kept")
    called = [f"{each.name} ({each.card['verdict']['outcome']})" for each in cards]
    return outcome, f"{shortened(called, SHOWN)}: {detail}"


def verdicts(evidence: Evidence) -> tuple[str, str]:
    """Compare the verdicts in the bundle with those of this clone's code on its rows."""
    claimed = [(row.get("check"), row.get("outcome")) for row in csv.DictReader(io.StringIO(evidence.bundle.checks))]
    found = [(check.check, check.outcome) for checks in evidence.checks.values() for check in checks]
    other = sum((Counter(claimed) - Counter(found)).values())
    if other or evidence.bundle.coverage != evidence.coverage.to_csv(index=False):
        return CANNOT_TELL, f"its coverage, or {other} of its self-checks, are not as this clone's code finds them"
    return PASSED, "its coverage and self-checks are as this clone's code finds them"


def origin(evidence: Evidence) -> tuple[str, str]:
    """Say what no check can notice."""
    return CANNOT_TELL, "nothing is signed: rows that are made up consistently pass all of this"


ASPECTS = (archive, rows, metadata, machine, code, coverage, self_checks, data_sheet, cards, verdicts, origin)


def findings(bundle: Bundle) -> list[Finding]:
    """Outcomes of a bundle's aspects, in the order of the table."""
    evidence = Evidence(bundle)
    return [Finding(judge.__name__.replace("_", " "), *judge(evidence)) for judge in ASPECTS]


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
