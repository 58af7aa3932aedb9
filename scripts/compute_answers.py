"""Compute all that the report's templates print from the tables, so that an edited template is only typeset."""

import copyreg
import importlib
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas

from cs336_systems.plan import read_plan
from scripts.log import log_to
from scripts.rendering.contents import read_contents
from scripts.views.data import load, load_recorded
from scripts.writeup import compute

# A section may hand its template a module of constants.
copyreg.pickle(ModuleType, lambda module: (importlib.import_module, (module.__name__,)))


def answer(
    plan: str,
    tables: Mapping[str, str],
    coverage: str,
    checks: str,
    digests: Mapping[str, Collection[str]],
    output: str,
) -> None:
    """Write the answers to the tables at the given paths as a file for `scripts.writeup`.

    `digests` are those that rows of each experiment have if the present code measured them.
    """
    loaded = {name: load(name, path) for name, path in tables.items()}
    outcomes = pandas.read_csv(checks, keep_default_na=False)
    planned = read_plan(Path(plan))
    recorded = load_recorded(planned.reference) if planned.reference else None
    found = compute(read_contents(), planned, loaded, pandas.read_csv(coverage), outcomes, digests, recorded)
    Path(output).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    snakemake: Any  # set by Snakemake
    with log_to(snakemake.log[0]):
        answer(
            plan=snakemake.input.plan,
            tables={name: snakemake.input[name] for name in snakemake.params.digests},
            coverage=snakemake.input.coverage,
            checks=snakemake.input.checks,
            digests=snakemake.params.digests,
            output=snakemake.output[0],
        )
