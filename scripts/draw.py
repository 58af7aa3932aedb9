"""Draw a figure of the report."""

import importlib
from collections.abc import Mapping
from typing import Any

from scripts.log import log_to


def draw(script: str, options: Mapping[str, str], output: str, **source: str) -> None:
    """Have the module of scripts/figures draw its source, a path, as an SVG at another.

    The source is named: `table`, and `beside` if it needs a second one, or `trace`, which is empty if there is none;
    closed forms have none.
    """
    importlib.import_module(f"scripts.figures.{script}").draw(**source, output=output, **options)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        draw(
            script=snakemake.params.script,
            options=snakemake.params.options,
            output=snakemake.output[0],
            **{name: str(path or "") for name, path in snakemake.input.items()},
        )
