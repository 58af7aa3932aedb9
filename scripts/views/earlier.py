"""Rows that an earlier version of the code measured, so that a section can say so."""

from pandas import DataFrame

from cs336_systems.record.revisions import is_current
from scripts.rendering.answer import say
from scripts.rendering.markup import Typst
from scripts.views.comparison import Kind, cell_name


def earlier_cells(kind: Kind, table: DataFrame) -> set[str]:
    """The cells, in words, that have rows of revisions other than the current ones."""
    older = table[~table["revisions"].map(is_current).eq(True)]
    return {cell_name(kind, row) for _, row in older.drop_duplicates(["size", "processes", "precision"]).iterrows()}


def of_earlier_code(kind: Kind, table: DataFrame) -> Typst:
    """The sentence that names such cells."""
    return say("Measured with earlier code: {cells}.", cells="; ".join(sorted(earlier_cells(kind, table))) or None)
