"""Marks on times whose samples scatter, or that are a single sample."""

from pandas import Series

WIDE = 0.05
"""A standard deviation above this share of the mean is marked."""
MARKS = {
    "°": "°: a single sample",
    "*": f"*: standard deviation above {100 * WIDE:.0f} % of the mean",
}
"""The marks of a table's times, and their meanings for its legend."""


def mark(row: Series) -> str:
    """The mark of a row's time, or nothing."""
    if row["n"] == 1:
        return "°"
    return "*" if row["std"] > WIDE * row["mean"] else ""


def marked(row: Series | None, decimals: int = 3) -> str:
    """A row's median with its mark; empty where there is no row."""
    return "" if row is None else f"{row['median']:.{decimals}f}{mark(row)}"
