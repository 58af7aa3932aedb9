"""The example of docs/compare.md: the command's summary of the two recorded machines."""

from itertools import takewhile

from cs336_systems.compare.comparison import compare
from cs336_systems.compare.output import to_text
from cs336_systems.compare.results import read_results
from cs336_systems.compare.speed import SLOWER
from scripts.docs.markdown import with_table

A, B = "nvidia-h200", "nvidia-h100-80gb-hbm3"


def page(text: str) -> str:
    """The text of the page with the example."""
    lines = (
        to_text(compare(*(read_results(f"recorded/{name}") for name in (A, B)))).replace("recorded/", "").splitlines()
    )
    summary = takewhile(lambda line: not line.startswith(SLOWER), lines)
    printed = "\n".join(summary).strip()
    return with_table(text, "example", f"```text\n$ cs336-systems compare {A} {B}\n{printed}\n```\n")
