"""Draw a figure of the report."""

import importlib
from collections.abc import Mapping
from typing import Any

from scripts.log import log_to


def draw(script: str, options: Mapping[str, str], table: str, output: str) -> None:
    """Have the module of scripts/figures draw the table at one path as an SVG at the other."""
    importlib.import_module(f"scripts.figures.{script}").draw(table=table, output=output, **options)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        draw(
            script=snakemake.params.script,
            options=snakemake.params.options,
            table=snakemake.input.table,
            output=snakemake.output[0],
        )
