"""Self-checks of the measurements: generators of evidence that `check` concludes from, and what they share."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getdoc, getmodule, signature
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.base import Experiment
from cs336_systems.measure.gpus import Gpu, gpu_of
from cs336_systems.record.rows import parameters
from scripts.rendering.markup import NOT_MEASURED, fixed_point
from scripts.views.cells import in_words

P = ParamSpec("P")
TOLERANCE = {"GPU": 0.15, "CPU": 0.5}
"""Relative difference between two measurements of one thing that needs no explanation; a CPU does other work too."""
HONEST = 0.03
"""Relative difference of a time from itself in another cell or launch, for which no code is to blame: a GPU's clock
follows its temperature and power, and memory is laid out anew."""


def between_cells(tolerance: float) -> float:
    """The relative difference allowed between times of two cells, each off by HONEST, `tolerance` of it explained."""
    return (1 + tolerance) * (1 + HONEST) / (1 - HONEST) - 1


def told(value: float | None, decimals: int = 0) -> str:
    """A number in a complaint, or that there is none."""
    return fixed_point(value, decimals, missing=NOT_MEASURED)


def name_row(kind: type[Experiment], row: Series) -> str:
    """The cell of a row of any experiment, in words."""
    return in_words(kind, tuple(row[name] for name in parameters(kind)))


class Case(NamedTuple):
    """One of the cases that a check examines."""

    where: object
    """The case; its text names it in a complaint."""
    wrong: bool
    """Whether the check fails by it."""
    complaint: str
    """The complaint then, which follows these words."""
    figure: float | None = None
    """A number of which the check's summary gives the extremes."""


Evidence = Iterator[Case | int | float | str]
"""An int: so many cases without a complaint. A float: the figure of one. A str: a complaint next to them."""


@dataclass(frozen=True)
class Check:
    """The outcome of one self-check."""

    check: str
    """The sentence that must hold."""
    outcome: str
    """passed, failed, or not applicable."""
    detail: str
    """The figures behind the outcome."""


class NotApplicable(Exception):
    """Raised by a check that cannot be made, with the reason."""


def check(
    summary: str | Callable[..., str], otherwise: str | None = None
) -> Callable[[Callable[P, Evidence]], Callable[P, Check]]:
    """Make a generator of evidence a check, which fails at a complaint, and does not apply where there is no case.

    The first paragraph of its docstring is the sentence that must hold. Constants of its module are filled into both;
    into the summary also the number of cases `n`, and the `least`, the `most` and the `total` of their figures.

    Args:
        summary: the detail of a check that has passed, or what makes it of the check's arguments.
        otherwise: why there is no case, if that is not what the summary says of none.
    """

    def decorate(examine: Callable[P, Evidence]) -> Callable[P, Check]:
        paragraph, _, _ = (getdoc(examine) or "").partition("\n\n")
        sentence = " ".join(paragraph.split()).removesuffix(".")
        if not sentence[1].isupper():  # TF32
            sentence = sentence[0].lower() + sentence[1:]

        @functools.wraps(examine)
        def concluded(*args: P.args, **kwargs: P.kwargs) -> Check:
            constants = vars(getmodule(examine))
            name = sentence.format_map(constants)
            number, figures, complaints = 0, list[float](), list[str]()
            try:
                for found in examine(*args, **kwargs):
                    match found:
                        case Case(where, wrong, complaint, figure):
                            number += 1
                            figures += [] if figure is None else [figure]
                            complaints += [f"{where}: {complaint}"] if wrong else []
                        case int():
                            number += found
                        case float():
                            number += 1
                            figures.append(found)
                        case str():
                            complaints.append(found)
            except NotApplicable as reason:
                return Check(name, "not applicable", str(reason))
            if number and complaints:
                more = f" (and {len(complaints) - 3} more)" if len(complaints) > 3 else ""
                return Check(name, "failed", "; ".join(complaints[:3]) + more)
            known = [figure for figure in figures if not math.isnan(figure)]
            extremes = {"least": min(known, default=0.0), "most": max(known, default=0.0), "total": sum(known)}
            detail = summary if isinstance(summary, str) else summary(*args, **kwargs)
            if not number and otherwise is not None:
                detail = otherwise
            detail = detail.format_map({**constants, "n": number, **extremes})
            return Check(name, "passed" if number else "not applicable", detail)

        concluded.__signature__ = signature(examine).replace(return_annotation=Check)  # type: ignore[attr-defined]
        return concluded

    return decorate


def checks_of(module: ModuleType, tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of a module, in its order: the functions that return one.

    A parameter of theirs has the name of the table that it gets, or is called `tables` and gets all. By any other name,
    it gets what the module's function of that name makes of all tables.
    """
    given: dict[str, Any] = {"tables": tables}
    for examine in list(vars(module).values()):
        if getattr(examine, "__module__", "") != module.__name__ or signature(examine).return_annotation is not Check:
            continue
        for name in signature(examine).parameters:
            if name not in given:
                given[name] = tables[name] if name in tables else getattr(module, name)(tables)
        yield examine(*(given[name] for name in signature(examine).parameters))


def under_the_roofline(
    gpu: str,
    rows: DataFrame,
    named: Callable[[Series], str],
    flops: Callable[[Series], float],
    *,
    time: str = "median",
    ceiling: Callable[[Gpu, str], float] = Gpu.flops,
) -> Evidence:
    """Evidence that no timing is faster than its matrix multiplies at the GPU's peak.

    Args:
        gpu: the GPU's name.
        rows: the timings.
        named: the words for one of them.
        flops: the operations of its matrix multiplies.
        time: the column of their times, ms.
        ceiling: the peak by precision, FLOP/s.

    Raises:
        NotApplicable: the GPU's peak is not listed.
    """
    peak = gpu_of(gpu)
    if peak is None:
        raise NotApplicable(f"no peak rate is listed for {gpu or 'a CPU'}")
    for _, row in rows.iterrows():
        share = flops(row) / (row[time] / 1e3) / ceiling(peak, row["precision"])
        yield Case(named(row), share > 1, f"{share:.0%} of the peak", share)


def within_memory(row: Series, cell: str, least: float, digits: int = 0) -> Case:
    """The case that a row's memory must be between `least` bytes and what the device has."""
    low, high = least / MIB, row["gpu_memory"] / MIB
    limits = f"{row['mean']:.{digits}f} MiB, not between {low:.{digits}f} and {high:.0f}"
    return Case(cell, not low <= row["mean"] <= high, limits)
