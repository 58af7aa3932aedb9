"""Marks on times whose samples scatter, or that are a single sample."""

from pandas import Series

from scripts.rendering.markup import Table

WIDE = 0.05
"""A standard deviation above this share of the mean is marked."""
MARKS = {
    "°": "°: a single sample.",
    "*": f"*: standard deviation above {100 * WIDE:.0f} % of the mean.",
}


def mark(row: Series) -> str:
    """The mark of a row's time, or nothing."""
    if row["n"] == 1:
        return "°"
    return "*" if row["std"] > WIDE * row["mean"] else ""


def marked(row: Series | None, decimals: int = 3) -> str:
    """A row's median with its mark; empty where there is no row."""
    return "" if row is None else f"{row['median']:.{decimals}f}{mark(row)}"


def legend(*tables: Table | None) -> str:
    """The meanings of the marks that occur in tables, a sentence each."""
    cells = [cell for table in tables if table for line in table.rows for cell in line]
    return " ".join(meaning for sign, meaning in MARKS.items() if any(cell.endswith(sign) for cell in cells))
