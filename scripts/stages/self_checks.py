"""The self-checks: conditions that valid numbers must satisfy."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from cs336_systems.discovery import modules
from scripts.checks import Check, checks_of
from scripts.tools.log import log_to
from scripts.views.data import load


def all_checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every self-check of the report: the checks of each module in scripts/checks."""
    for module in modules("scripts.checks"):
        yield from checks_of(importlib.import_module(module), tables)


def write_checks(tables: Mapping[str, str], output: str) -> None:
    """Write the outcome of every check on the tables at the given paths."""
    loaded = {name: load(name, path) for name, path in tables.items()}
    DataFrame([asdict(check) for check in all_checks(loaded)]).to_csv(output, index=False)


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        write_checks(tables=dict(snakemake.input.items()), output=snakemake.output[0])
