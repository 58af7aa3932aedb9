"""Keep the plan of this run in a file, for the steps that need it later."""

from pathlib import Path
from typing import Any

from scripts.log import log_to


def keep(plan: str, output: str) -> None:
    """Write the plan, which is JSON already."""
    Path(output).write_text(plan, encoding="utf-8")


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        keep(plan=snakemake.params.plan, output=snakemake.output[0])
