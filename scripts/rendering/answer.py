"""One sub-question's answer: the verdict first, then its results, then the reason."""

import re
import string as strings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from math import nan
from typing import Any

from pandas import DataFrame, Series

from scripts.rendering.markup import FILTERS, Missing, Table, Typst, escape, finalize, measured, span, string, with_unit

Tables = Mapping[str, DataFrame]
"""The table of each experiment, at one setting."""
Answers = Mapping[str, Any]
"""A section's answers by name, and what else its template or its tiles print."""
NOTHING = Typst("")
NOT_HERE = "Not measured on this machine."


OPERATIONS: dict[str, Callable[[float, float], float]] = {
    " / ": lambda first, second: first / second if second else nan,
    " - ": lambda first, second: first - second if first > second else nan,
}
"""Fields made from two others: the ratio, and the difference if the first is larger."""


class _Sentence(strings.Formatter):
    """Python's format strings over Typst markup, with units for format specifications."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Look up a field, unless the object that has it was not measured; some are made from two by OPERATIONS."""
        for sign, operation in OPERATIONS.items():
            first, _, second = field_name.partition(sign)
            if second:
                values = [self.get_field(name, args, kwargs)[0] for name in (first, second)]
                return (nan if _missing(values) else operation(*values)), field_name
        if kwargs[re.split(r"[.\[]", field_name)[0]] is None:
            raise Missing
        return super().get_field(field_name, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Escape a value, or print a number in a unit or by one of FILTERS."""
        if _missing(value):
            raise Missing
        if not format_spec:
            return finalize(value)
        name, _, unit = format_spec.partition(" ")
        if name == "span":
            return span(value, {"times": "×", "percent": "%"}.get(unit, unit))
        filters: Mapping[str, Any] = FILTERS  # they differ in their arguments; the ones named here take one
        return filters[name](value) if name in filters else with_unit(value, format_spec)


def say(*sentences: str, **values: Any) -> Typst:
    """Join the sentences whose values were measured; others are omitted.

    Args:
        sentences: Typst markup with fields, or a `Typst`, which is finished. `{name}` prints a string (escaped), markup
            or a whole number, `{row[column]}` a row's value; `{name:ms}` a number in a unit; `{name:times}` and the
            like apply one of FILTERS; `{a / b:times}` prints a ratio, `{a - b:ms}` a difference, if a is larger;
            `{name:span ms}` prints the minimum and maximum of a pair.
        values: by the names in the sentences. So a sentence about a missing number, or about a row that is None, leaves
            no gap.
    """
    return Typst(" ".join(filter(None, (_filled(sentence, values) for sentence in sentences))))


def _filled(sentence: str, values: Mapping[str, Any]) -> str:
    if isinstance(sentence, Typst):
        return sentence
    try:
        return _Sentence().vformat(sentence, (), values)
    except Missing:
        return NOTHING


class Facts:
    """The values that the sentences of an answer share, by the names used in the sentences."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def say(self, *sentences: str, **more: Any) -> Typst:
        """Join the sentences that these values and `more` can complete."""
        return say(*sentences, **{**self._values, **more})


def _missing(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return not value or any(_missing(each) for each in value)
    return value == "" if isinstance(value, str) else not measured(value)


def choose(holds: bool | None, if_so: str, if_not: str, if_undecided: str = NOTHING) -> str:
    """Choose the words for a claim that holds, does not hold, or (None) cannot be decided."""
    return if_undecided if holds is None else if_so if holds else if_not


def plural(number: int, noun: str) -> str:
    """The noun for a number: "cell" for 1, otherwise "cells"."""
    return noun if number == 1 else f"{noun}s"


def count(number: int, noun: str) -> Typst:
    """A number and its noun, as in "1 cell" and "3 cells"."""
    return Typst(f"{finalize(number)} {escape(plural(number, noun))}")


def median_of(number: int, noun: str) -> Typst:
    """The number of values behind a median, as in "1 cell" and "median of 3 cells"."""
    return Typst(("" if number == 1 else "median of ") + count(number, noun))


def least_and_most(values: Series) -> tuple[float, float]:
    """The ends of a column for `{name:span unit}`; NaN if it has no numbers."""
    return float(values.min()), float(values.max())


@dataclass(frozen=True)
class Captioned:
    """A table with its caption: markup, or any other string, which is escaped. Without rows it is not shown."""

    table: Table
    caption: str
    closed_form: bool = False
    """Whether it holds on every machine: a report from a processor leaves it, like derivations, to the web edition."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """The meaning of a column, a group of columns or a sign at the end of a cell, shown where the table has it."""

    @property
    def words(self) -> Typst:
        """The caption, with what the legend says of this table."""
        has = {*self.table.columns, *(title for title, _ in self.table.groups)}
        has |= {cell[-1:] for row in self.table.rows for cell in row}
        said = "; ".join(meaning for key, meaning in self.legend.items() if key in has)
        said = said[:1].upper() + said[1:]
        if not said:
            return finalize(self.caption)
        if isinstance(self.caption, Typst):
            return Typst(f"{self.caption} {escape(f'{said}.')}")
        return escape(f"{self.caption} {said}.")


Result = str | Captioned
"""The name of a figure, or a table."""


@dataclass(frozen=True)
class Answer:
    """A section's answer to one sub-question, in Typst markup."""

    asked: str
    """The sub-question in a few words, as in "(b) Variability"."""
    verdict: str = ""
    """One sentence of at most 100 characters that is understandable on its own; the first pages list it.

    Empty if nothing was measured: then `missing` replaces it.
    """
    more: str = ""
    """The rest of the answer, in bold like the verdict: with it at most 50 words."""
    results: Result | Sequence[Result] = ()
    """One figure or one short table; exceptionally two."""
    reason: str = ""
    """Why, as measured columns show it: at most 120 words."""
    details: Result | Sequence[Result] = ()
    """The part that is only in the web edition: long tables and further figures."""
    missing: str = NOT_HERE
    """The text in place of a verdict."""

    def __post_init__(self) -> None:
        """Store a single figure or table as a sequence, and drop tables without rows."""
        for name in ("results", "details"):
            object.__setattr__(self, name, _there(getattr(self, name)))

    @property
    def headline(self) -> Typst:
        """The verdict, or the reason why there is none."""
        return Typst(self.verdict) or escape(self.missing)

    def markup(self, name: str, figure: Callable[[str], Typst]) -> Typst:
        """The answer as Typst markup.

        Args:
            name: what its labels end in, as in "benchmarking_script-times"; its tables are labelled `tab-NAME`,
                `tab-NAME-2` and so on, in order.
            figure: makes the markup of a figure of the report from its name.
        """
        bold = f"{self.headline} {self.more}" if self.verdict and self.more else self.headline
        blocks = [f"#answer({string(name)}, [{escape(self.asked)}], [{bold}])"]
        if self.verdict:
            numbers = count_from(1)

            def block(shown: Result) -> str:
                if isinstance(shown, str):
                    return figure(shown)
                number = next(numbers)
                label = f"tab-{name}" + (f"-{number}" if number > 1 else "")
                table = f"#tabulated([{shown.words}])[\n{shown.table.markup()}\n] <{label}>"
                return f"#derivation[\n{table}\n]" if shown.closed_form else table

            blocks += [block(shown) for shown in _there(self.results)]
            blocks += filter(None, [self.reason])
            blocks += [f"#online[\n{block(shown)}\n]" for shown in _there(self.details)]
        return Typst("\n\n".join(blocks))


def _there(shown: Result | Sequence[Result]) -> list[Result]:
    every = [shown] if isinstance(shown, str | Captioned) else shown
    return [each for each in every if isinstance(each, str) or each.table.rows]


def answers_of(values: Answers) -> dict[str, Answer]:
    """The answers among a section's values, in order."""
    return {name: value for name, value in values.items() if isinstance(value, Answer)}
