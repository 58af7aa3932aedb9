"""Tables with a row for each row of a data frame, whose columns are format strings."""

import string
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.markup import FILTERS, Table, fixed, measured

NONE = "–"
"""Stands in a table for what was not measured."""
Columns = Mapping[str, Mapping[str, str]]
"""By the title above them, the titles of columns and what they hold."""


class _Cell(string.Formatter):
    """Python's format strings, with some of FILTERS for format specifications; dashes for what was not measured."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one value of a row."""
        if not isinstance(value, str) and not measured(value):
            return NONE
        filters: Mapping[str, Any] = FILTERS
        return str(filters[format_spec](value)) if format_spec in filters else format(value, format_spec)


def grid(rows: DataFrame, columns: Columns, text_columns: int = 1) -> Table:
    """The rows as a table; a column that has nothing but dashes is left out.

    Args:
        rows: one per line.
        columns: each holds a format string over the columns of `rows`, as in "{median:.1f}", or the name of one whose
            numbers get the same number of decimals.
        text_columns: so many at the left are text.
    """
    lines = rows.to_dict("records")
    kept: dict[str, list[tuple[str, list[str]]]] = {group: [] for group in columns}
    for group, forms in columns.items():
        for title, form in forms.items():
            if "{" in form:
                texts = [_Cell().vformat(form, (), line) for line in lines]
            else:
                texts = [text or NONE for text in fixed(list(rows[form]))]
            if any(text.strip("* ") != NONE for text in texts):
                kept[group].append((title, texts))
    every = [column for inside in kept.values() for column in inside]
    body = list(map(list, zip(*(texts for _, texts in every), strict=True)))
    groups = [(group, len(inside)) for group, inside in kept.items()] if len(kept) > 1 else []
    return Table([title for title, _ in every], body, text_columns, groups)
