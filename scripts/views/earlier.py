"""Rows that an earlier version of the code measured, so that a table can mark them where they stand."""

from pandas import DataFrame

from scripts.views.comparison import Kind, cell_name

MARK = "earlier code"
"""What stands beside such rows."""


def earlier_cells(kind: Kind, table: DataFrame) -> set[str]:
    """The cells, in words, whose rows have another digest of the code than the experiment's newest rows."""
    if not len(table):
        return set()
    newest = table.sort_values("utc", kind="stable")["source_digest"].iloc[-1]
    older = table[table["source_digest"] != newest]
    return {cell_name(kind, row) for _, row in older.drop_duplicates(["size", "processes", "precision"]).iterrows()}


def marked_earlier(name: str, earlier: set[str]) -> str:
    """A cell's name, and whether earlier code measured it."""
    return f"{name}, {MARK}" if name in earlier else name
