"""Self-checks of the measurements: generators of cases, from which `check` draws a conclusion, and shared helpers."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getdoc, getmodule, signature
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec

from pandas import DataFrame, Series

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from scripts.rendering.answer import plural
from scripts.views.cells import in_words
from scripts.views.data import select

P = ParamSpec("P")
TOLERANCE = {"GPU": 0.15, "CPU": 0.5}
"""Relative difference between two measurements of the same quantity that needs no explanation; a CPU also does other
work."""
RUN_TO_RUN = 0.03
"""Relative difference of the same time in another cell or launch that is not caused by code: a GPU's clock follows its
temperature and power, and memory is laid out differently."""


def between_cells(tolerance: float) -> float:
    """The relative difference allowed between times of two cells: each may be off by RUN_TO_RUN, and `tolerance` is
    explained.
    """
    return (1 + tolerance) * (1 + RUN_TO_RUN) / (1 - RUN_TO_RUN) - 1


def name_row(experiment: str, row: Series) -> str:
    """The cell of a row of any experiment, in words, and what distinguishes the row from others of the cell."""
    kind = EXPERIMENTS[experiment]
    details = [str(row[name]) for name in kind.details if row.get(name)]
    return ", ".join([in_words(kind, tuple(row[name] for name in parameters(kind))), *details])


def rows_of(tables: Mapping[str, DataFrame], **wanted: Any) -> Iterator[tuple[str, Series]]:
    """Each measured row of any experiment with the given values in the named columns, and its description."""
    for name, table in tables.items():
        for _, row in select(table, status="ok", **wanted).iterrows():
            yield name_row(name, row), row


class Case(NamedTuple):
    """One of the cases that a check examines."""

    where: object
    """The case; its text names it in a message."""
    wrong: bool = False
    """Whether the check fails because of it."""
    detail: str = ""
    """The message if it fails, printed after `where`."""
    figure: float | None = None
    """A number; the check's summary gives the extremes."""


Cases = Iterator[Case]


@dataclass(frozen=True)
class Check:
    """The outcome of one self-check."""

    check: str
    """The sentence that must hold."""
    outcome: str
    """passed, failed, or not applicable."""
    detail: str
    """The figures behind the outcome."""


def check(summary: str, otherwise: str | None = None) -> Callable[[Callable[P, Cases]], Callable[P, Check]]:
    """Turn a generator of cases into a check. It fails if a case fails, and does not apply if there is no case.

    The first paragraph of its docstring is the sentence that must hold. Constants of its module are inserted into both;
    the summary also gets their number, as in "{n} cell{s}", and the `least`, `most` and `total` of their figures.

    Args:
        summary: the detail of a check that has passed.
        otherwise: why there is no case; by default, the summary for no cases.
    """

    def decorate(examine: Callable[P, Cases]) -> Callable[P, Check]:
        paragraph, _, _ = (getdoc(examine) or "").partition("\n\n")
        sentence = " ".join(paragraph.split()).removesuffix(".")
        if not sentence[1].isupper():  # TF32
            sentence = sentence[0].lower() + sentence[1:]

        @functools.wraps(examine)
        def concluded(*args: P.args, **kwargs: P.kwargs) -> Check:
            constants = vars(getmodule(examine))
            cases = list(examine(*args, **kwargs))
            return conclude(sentence.format_map(constants), cases, summary, otherwise, constants)

        concluded.__signature__ = signature(examine).replace(return_annotation=Check)  # type: ignore[attr-defined]
        return concluded

    return decorate


def conclude(
    sentence: str, cases: list[Case], summary: str, otherwise: str | None = None, constants: Mapping[str, Any] = {}
) -> Check:
    """Return the outcome of a check from its cases; `summary` and `otherwise` are as in `check`."""
    if errors := [f"{case.where}: {case.detail}" for case in cases if case.wrong]:
        more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
        return Check(sentence, "failed", "; ".join(errors[:3]) + more)
    known = [case.figure for case in cases if case.figure is not None and not math.isnan(case.figure)]
    extremes = {"least": min(known, default=0.0), "most": max(known, default=0.0), "total": sum(known)}
    detail = summary if cases or otherwise is None else otherwise
    detail = detail.format_map({**constants, "n": len(cases), "s": plural(len(cases), ""), **extremes})
    return Check(sentence, "passed" if cases else "not applicable", detail)


def checks_of(module: ModuleType, tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """All checks of a module, in its order: the functions that return one, or yield several.

    A parameter named after a table gets that table; `tables` gets all of them. A parameter with any other name gets the
    result of the module's function of that name, called with all tables.
    """
    given: dict[str, Any] = {"tables": tables}
    for examine in list(vars(module).values()):
        own = getattr(examine, "__module__", "") == module.__name__ and not isinstance(examine, type)
        if not own or signature(examine).return_annotation not in (Check, Iterator[Check]):
            continue
        for name in signature(examine).parameters:
            if name not in given:
                given[name] = tables[name] if name in tables else getattr(module, name)(tables)
        checks = examine(*(given[name] for name in signature(examine).parameters))
        yield from [checks] if isinstance(checks, Check) else checks
