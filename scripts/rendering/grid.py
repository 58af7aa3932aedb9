"""Tables with a row for each row of a data frame, whose columns are format strings."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from pandas import DataFrame

from scripts.rendering.markup import NOT_MEASURED, Missing, Table, Typst, fixed, measured, significant

NONE = "–"
"""Placeholder in a table for values that were not measured."""
Columns = Mapping[str, Mapping[str, str] | str]
"""Columns' contents by title, or groups of such columns by the title above them."""


def cut(value: float) -> str:
    """Milliseconds: one decimal from 10 on, two below."""
    if not measured(value):
        return NONE
    decimals = 1 if abs(value) >= 10 else 2
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


FORMS: dict[str, Callable[[Any], str]] = {
    "cut": cut,
    "sig": lambda value: str(significant(value)),
    "sig2": lambda value: str(significant(value, 2)),
    "share": lambda value: f"{100 * value:.0f}",
    "GiB": lambda value: f"{value / 1024:.1f}",
    "star": lambda value: "*" if value else "",
}
"""Additional format specifications: `share` formats a fraction in percent, `GiB` takes MiB, `star` marks true
values."""


class _Cell(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one value of a row."""
        if not isinstance(value, str) and not measured(value):
            raise Missing
        return FORMS[format_spec](value) if format_spec in FORMS else format(value, format_spec)


def cell(form: str, row: Mapping[str, Any]) -> str:
    """A format string over a row, or a dash if a number that it names was not measured; markup stays markup."""
    if isinstance(markup := row.get(form[1:-1]), Typst):
        return markup
    try:
        return _Cell().vformat(form, (), row)
    except Missing:
        return NONE


def grid(rows: DataFrame, columns: Columns, text_columns: int = 1, *, by: str = "") -> Table:
    """The rows as a table; a column that has only dashes is omitted.

    Args:
        rows: one per line; if `message` is not empty, it says why there are no numbers.
        columns: each holds a format string over the columns of `rows`, as in "{median:.1f}", or the name of a column
            whose numbers get the same number of decimals.
        text_columns: the number of text columns on the left.
        by: a column of headings; the rows below each heading are grouped.
    """
    lines: Any = rows.to_dict("records")
    whys = [why if isinstance(why := line.get("message"), str) else "" for line in lines]
    kept: dict[str, list[tuple[str, list[str]]]] = {}
    for name, held in columns.items():
        group, forms = ("", {name: held}) if isinstance(held, str) else (name, held)
        for title, form in forms.items():
            number = sum(map(len, kept.values()))
            if "{" in form:
                texts = [
                    NONE if why and number >= text_columns else cell(form, line)
                    for line, why in zip(lines, whys, strict=True)
                ]
            else:
                texts = [text or NONE for text in fixed(list(rows[form]))]
            if number < text_columns or any(text != NONE for text in texts):
                kept.setdefault(group, []).append((title, texts))
    every = [column for inside in kept.values() for column in inside]
    if len(every) <= text_columns and any(whys):
        every.append(("", whys))
    body: list[list[str]] = []
    for place, (line, why) in enumerate(zip(lines, whys, strict=True)):
        if by and (not place or line[by] != lines[place - 1][by]):
            body.append([line[by]])
        lost = f"{NOT_MEASURED}: {why.removeprefix(f'{NOT_MEASURED}: ').removeprefix('not timed: ')}"
        body.append([lost if why and at >= text_columns else texts[place] for at, (_, texts) in enumerate(every)])
    groups = [(group.strip(), len(inside)) for group, inside in kept.items()]
    return Table([title for title, _ in every], body, text_columns, groups if len(groups) > 1 else [])
