"""The last output of a run that has made the report: where the report is, its findings, and the next command. No
torch.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

HEADLINE = re.compile(r"^tile\(\[(?P<number>.*?)\], \[(?P<meaning>.*)\]\),$", re.MULTILINE)
ANSWER = re.compile(r'^finding\(".*?", \[.*?\], \[(?P<meaning>.*)\]\),$', re.MULTILINE)
"""Lines of the report's Typst source: the headline numbers, then the answers."""
QUOTED = re.compile(r'#"((?:[^"\\]|\\.)*)";?')
FINDINGS = 3
NEXT = {
    "cpu": "These models are small; `snakemake --config recorded=nvidia-h200` makes the report of an H200's results.",
    "cuda": "`snakemake card` checks whether this GPU is as fast as it should be.",
    "recorded": "`make` measures this machine.",
}
"""The next command, after a run on a device or from recorded results."""


def ending(results: Path, after: str) -> Iterator[str]:
    """The last lines of a run.

    Args:
        results: the machine's folder, with the report.
        after: a key of NEXT.
    """
    source = (results / "writeup.typ").read_text(encoding="utf-8")
    yield (results / "verdict.txt").read_text(encoding="utf-8").strip()
    if left_out := unplanned(results / "coverage.csv"):
        yield (
            f"Measured cells left out because this configuration does not plan them: {left_out}. To include them, "
            "repeat the --config or --configfile with which they were measured."
        )
    if (page := results / "report.html").exists():
        yield f"The page with all rows to explore is {page}"
    yield from (f"- {finding}" for finding in findings(source))
    yield NEXT[after]


def unplanned(coverage: Path) -> int:
    """The number of measured cells that the plan does not contain."""
    with coverage.open(newline="", encoding="utf-8") as file:
        return sum(int(row["unplanned"]) for row in csv.DictReader(file))


def findings(source: str) -> list[str]:
    """The first headline numbers of a report's Typst source, or measured answers if there are too few."""
    numbers = [
        f"{match['number']}{'' if match['number'].endswith('×') else ':'} {match['meaning']}"
        for match in HEADLINE.finditer(source)
    ]
    answers = [match["meaning"] for match in ANSWER.finditer(source)]
    measured = [text for text in map(plain, numbers + answers) if not text.startswith("Not measured")]
    return measured[:FINDINGS]


def plain(markup: str) -> str:
    """One line of Typst markup as plain text."""
    return QUOTED.sub(lambda match: match[1].replace('\\"', '"'), markup).replace("~", " ").replace("`", "")
