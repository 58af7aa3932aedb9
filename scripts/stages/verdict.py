"""The report's path and the outcome of its self-checks, in one line; a failure makes the run fail if the configuration
is strict.

Launch: python -m scripts.stages.verdict CHECKS REPORT OUTPUT [--strict]
"""

import argparse
import csv
import sys
from pathlib import Path


def write_verdict(checks: str, report: str, output: str, strict: bool) -> None:
    """Write the verdict on the report at a path.

    Raises:
        SystemExit: a check failed and the configuration is strict.
    """
    with Path(checks).open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    failed = [row for row in table if row["outcome"] == "failed"]
    if failed and strict:
        details = "; ".join(f"{row['check']}: {row['detail']}" for row in failed)
        sys.exit(f"strict is true, and {len(failed)} self-check{'s' * (len(failed) > 1)} failed: {details}")
    applicable = sum(row["outcome"] != "not applicable" for row in table)
    passed = f"{applicable - len(failed)} of {applicable}"
    Path(output).write_text(f"The report is {report} ({passed} self-checks passed)\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("checks", "report", "output"):
        parser.add_argument(name)
    parser.add_argument("--strict", action="store_true")
    write_verdict(**vars(parser.parse_args()))
