"""Text, numbers and tables as Typst markup; strings are escaped."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import distribution
from numbers import Integral
from pathlib import Path
from typing import TypeGuard

FONT_FOLDER = Path(str(distribution("matplotlib").locate_file("matplotlib/mpl-data/fonts/ttf")))
"""Matplotlib's DejaVu Sans, the report's fallback font: it covers most alphabets and comes with a dependency."""
NOT_MEASURED = "not measured"


class Typst(str):
    """A string that is already markup; every other string is escaped."""

    __slots__ = ()


class Missing(Exception):
    """Raised if a value that a sentence or a cell names was not measured."""


@cache
def covered_characters() -> frozenset[int]:
    """Code points that the fallback font can print."""
    from matplotlib.ft2font import FT2Font  # imported here, since most scripts print only ASCII

    return frozenset(FT2Font(str(FONT_FOLDER / "DejaVuSans.ttf")).get_charmap())


def string(text: str) -> Typst:
    """A Typst string literal for code: control characters dropped, unprintable ones shown as their code point.

    Typst prints nothing for a character that is in no font, so a name in Chinese would vanish.
    """
    visible = re.sub(r"[\x00-\x1f\x7f]+", " ", text)
    shown = re.sub(r"[^\x00-\x7f]", _printable, visible)
    return Typst(json.dumps(shown, ensure_ascii=False))


def _printable(match: re.Match[str]) -> str:
    """A character, or its code point if no font has it."""
    return match[0] if ord(match[0]) in covered_characters() else f"[U+{ord(match[0]):04X}]"


def escape(text: str) -> Typst:
    """A string as markup that prints it literally."""
    return Typst(f"#{string(text)};")


def finalize(value: object) -> Typst:
    """Print a template's value: markup, a string, a whole number, or None as "not measured".

    Raises:
        TypeError: a float without a format, which would print 17 digits.
    """
    if value is None:
        return escape(NOT_MEASURED)
    if isinstance(value, Typst):
        return value
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        return Typst(f"{number:,}".replace(",", "\u202f") if abs(number) >= 10_000 else str(number))
    raise TypeError(f"{value!r} needs a format: one of the number filters")


def measured(value: float | None) -> TypeGuard[float]:
    """Whether a number was measured."""
    return value is not None and not math.isnan(value)


def fixed_point(value: float | None, decimals: int = 1, *, missing: str = "–") -> str:
    """A number in a table's cell, or the placeholder if it was not measured."""
    return f"{value:.{decimals}f}" if measured(value) else missing


def significant(value: float | None, digits: int = 3) -> Typst:
    """A number to the given significant digits, without an exponent."""
    if not measured(value):
        return escape(NOT_MEASURED)
    if value == 0:
        return Typst("0")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return Typst(f"{value:.{decimals}f}")


def times(value: float | None) -> Typst:
    """A ratio, such as a speedup, to two decimals, but not more than three digits."""
    if not measured(value):
        return escape(NOT_MEASURED)
    return Typst(f"{value:.2f}×" if value < 10 else f"{significant(value)}×")


def percent(value: float | None) -> Typst:
    """A fraction as a percentage."""
    return Typst(f"{significant(100 * value, 2)} %".replace(" ", "\u202f")) if measured(value) else escape(NOT_MEASURED)


def whole(value: float | None) -> Typst:
    """A number rounded to a whole one."""
    return finalize(round(value) if measured(value) else None)


def with_unit(value: float | None, unit: str) -> Typst:
    """A number to three significant digits with its unit, kept on one line."""
    return Typst(f"{significant(value)}\u202f{unit}") if measured(value) else escape(NOT_MEASURED)


milliseconds = partial(with_unit, unit="ms")


def span(values: Sequence[float | None], unit: str) -> Typst:
    """A minimum and a maximum, "3.0 ms to 4.0 ms", or a single number if they are equal after rounding.

    `unit` is the numbers' unit; "×" for ratios, "%" for fractions.
    """
    texts = [{"×": times, "%": percent}.get(unit, lambda value: with_unit(value, unit))(value) for value in values]
    return Typst(" to ".join(dict.fromkeys(texts)))


def listing(items: Sequence[str]) -> Typst:
    """Strings as a list in prose: a, b and c."""
    escaped = [finalize(item) for item in items]
    if len(escaped) < 2:
        return Typst("".join(escaped))
    return Typst(f"{', '.join(escaped[:-1])} and {escaped[-1]}")


@dataclass(frozen=True)
class Tile:
    """A headline figure of the title page."""

    number: Typst
    """The figure with its unit."""
    meaning: str
    """The figure's meaning: markup, or any other string, which is escaped."""


FILTERS = {
    "sig": significant,
    "ms": milliseconds,
    "seconds": partial(with_unit, unit="s"),
    "times": times,
    "percent": percent,
    "gib": lambda mebibytes: with_unit(mebibytes / 1024 if measured(mebibytes) else None, "GiB"),
    "size": lambda megabytes: with_unit(megabytes / 1e3, "GB") if megabytes >= 1e3 else with_unit(megabytes, "MB"),
    "whole": whole,
    "listing": listing,
    "string": string,
}


def fixed(values: Sequence[float | None]) -> list[str]:
    """A column of numbers with the same number of decimals: one or two, depending on the smallest number."""
    present = [abs(value) for value in values if measured(value)]
    decimals = 2 if present and min(present) < 10 else 1
    return [f"{value:.{decimals}f}" if measured(value) else "" for value in values]


def mean_std(pairs: Sequence[tuple[float | None, float | None]]) -> list[str]:
    """A column of "mean ± std" with the same number of decimals."""
    means = fixed([mean for mean, _ in pairs])
    decimals = max((len(mean.partition(".")[2]) for mean in means), default=0)
    return [
        f"{mean} ± {std:.{decimals}f}" if mean and measured(std) else mean
        for mean, (_, std) in zip(means, pairs, strict=True)
    ]


@dataclass(frozen=True)
class Table:
    """A table of strings or markup: the first `text_columns` columns are aligned left, the others right.

    A row of a single cell is a heading of the rows below it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    groups: Sequence[tuple[str, int]] = ()
    """A first header row: titles and the number of columns each spans; a title that spans none is omitted."""

    def markup(self) -> Typst:
        """The table; a cell that starts with "not measured" spans to the right over the empty ones."""
        align = ["left"] * self.text_columns + ["right"] * (len(self.columns) - self.text_columns)
        lines = [
            f"#table(columns: {len(self.columns)}, align: ({', '.join(align)},),",
            "table.hline(stroke: 0.8pt),",
            "table.header(",
        ]
        lines += [
            f"table.cell(colspan: {span}, align: center)[{escape(title)}]," for title, span in self.groups if span
        ]
        lines += [f"[*{escape(column)}*]," for column in self.columns]
        lines += ["table.hline(stroke: 0.5pt)),"]
        for row in self.rows:
            lines.append(" ".join(self._cells(row)))
        lines += ["table.hline(stroke: 0.8pt))"]
        return Typst("\n".join(lines))

    def _cells(self, row: Sequence[str]) -> list[str]:
        if len(row) == 1:
            heading = f"table.cell(colspan: {len(self.columns)}, align: left)[_{finalize(row[0])}_]"
            return [f"table.header(level: 2, {heading}),"]
        cells, index = [], 0
        while index < len(row):
            span = 1
            if row[index].startswith(NOT_MEASURED):
                while index + span < len(row) and row[index + span] == row[index]:
                    span += 1
                cells.append(f"table.cell(colspan: {span}, align: center)[#reason({string(row[index])})],")
            else:
                cells.append(f"[{finalize(row[index])}],")
            index += span
        return cells
