"""Tables, coverage and self-checks that this clone's code makes of a bundle's rows."""

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pandas import DataFrame

from cs336_systems.discovery import modules
from cs336_systems.record.rows import Provenance
from scripts.bundle import each
from scripts.card.checks import possible
from scripts.checks import Check, checks_of
from scripts.coverage import cover
from scripts.limits import TooExpensive
from scripts.read_bundle import Bundle
from scripts.tables import planned_rows
from scripts.views.data import frame


@dataclass(frozen=True)
class Evidence:
    """A bundle, and what this clone's code makes of its rows: computed once, when an aspect asks for it."""

    bundle: Bundle

    @cached_property
    def provenance(self) -> DataFrame:
        """The columns that a job's rows share, a line for each row."""
        names = [field.name for field in dataclasses.fields(Provenance)]
        return DataFrame([[getattr(row, name) for name in names] for row in each(self.bundle.rows)], columns=names)

    @cached_property
    def tables(self) -> dict[str, DataFrame]:
        """The table of each experiment's planned cells, as the report has it."""
        plan = self.bundle.plan
        return {name: frame(name, planned_rows(plan, name, rows)) for name, rows in self.bundle.rows.items()}

    @cached_property
    def coverage(self) -> DataFrame:
        """Planned against measured cells."""
        return cover(self.bundle.plan, {name: frame(name, rows) for name, rows in self.bundle.rows.items()})

    @cached_property
    def checks(self) -> dict[str, list[Check]]:
        """The outcomes of each module's self-checks."""
        return {
            module: outcomes(module, checks_of, importlib.import_module(module), self.tables)
            for module in modules("scripts.checks")
        }

    @cached_property
    def card_checks(self) -> list[Check]:
        """The outcomes of the checks of cards."""
        return outcomes("scripts.card.checks", possible, self.bundle.cards)


def outcomes(name: str, make: Callable[..., Iterable[Check]], *args: Any) -> list[Check]:
    """Make some checks, or a failed one if rows that are valid one by one make no sense together."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return list(make(*args))
    except (MemoryError, TooExpensive):
        raise
    except Exception as error:
        return [Check(f"{name} can be computed", "failed", f"{type(error).__name__}: {error}")]
