"""Check a finished report: python -m tests.verify_report results/cpu

The PDF exists, holds a heading for every section, and no self-check failed. Exits non-zero with the complaint.
"""

import sys
from pathlib import Path

import pandas

from scripts.rendering.contents import read_contents
from tests.samples import pdf_text, squeeze


def complaints(results: Path) -> list[str]:
    """List the faults of the report in a results folder."""
    pdf = results / "writeup.pdf"
    if not pdf.is_file():
        return [f"{pdf} does not exist"]
    text = pdf_text(pdf)
    checks = pandas.read_csv(results / "checks.csv")
    failed = checks[checks["outcome"] == "failed"]
    return [
        *(f"{pdf} has no section {name}" for name in read_contents().sections if squeeze(name) not in text),
        *(f"self-check failed: {row.check}: {row.detail}" for row in failed.itertuples()),
    ]


if __name__ == "__main__":
    found = complaints(Path(sys.argv[1]))
    print("\n".join(found) or f"{sys.argv[1]}: the report is whole and its self-checks passed")
    sys.exit(bool(found))
