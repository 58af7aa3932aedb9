"""Where the report is and how its self-checks went, in one line; a failed run if the configuration is strict."""

import re
import sys
from pathlib import Path
from typing import Any

import pandas

from scripts.log import log_to


def judge(checks: str, source: str, output: str, report: str, strict: bool) -> None:
    """Write the verdict on the report at a path; `source` is what was typeset.

    Raises:
        SystemExit: a check failed and the configuration is strict, or the report shows other outcomes than the checks'.
    """
    table = pandas.read_csv(checks)
    failed = table[table["outcome"] == "failed"]
    if len(failed) and strict:
        complaints = "; ".join(f"{row.check}: {row.detail}" for row in failed.itertuples())
        sys.exit(f"{len(failed)} self-checks failed and config.yaml says strict: true: {complaints}")
    applicable = (table["outcome"] != "not applicable").sum()
    passed = f"{applicable - len(failed)} of {applicable}"
    text = Path(source).read_text(encoding="utf-8")
    if re.findall(r'\boutcome\("(.*?)"\)', text) != list(table["outcome"]):
        sys.exit(f"{source}: its table of self-checks has other outcomes than {checks}")
    if f"\n{passed} applicable self-checks passed" not in text:
        sys.exit(f"{source}: its first page does not say that {passed} self-checks passed, as in {checks}")
    Path(output).write_text(f"The report is {report} ({passed} self-checks passed)\n", encoding="utf-8")


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        judge(
            checks=snakemake.input.checks,
            source=snakemake.input.source,
            output=snakemake.output[0],
            report=snakemake.input.report,
            strict=snakemake.params.strict,
        )
