"""Checks of recorded cards: whether their numbers are possible for such a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from cs336_systems.measure.gpus import gpu_of
from scripts.card.expected import sheet_peak
from scripts.card.lines import facts_of, lines_of
from scripts.checks import Case, Cases, Check, check
from scripts.checks.machine import card_has_its_memory

Cards = Mapping[str, Sequence[Any]]
"""The rows of runs by name."""


def possible(cards: Cards) -> list[Check]:
    """Check against the data sheet."""
    tables = {name: DataFrame(map(vars, rows)) for name, rows in cards.items()}
    return [card_has_its_memory(tables), rates_are_below_the_peak(cards)]


@check("{n} rate{s}; the closest reaches {most:.0%}")
def rates_are_below_the_peak(cards: Cards) -> Cases:
    """No rate of a card is above its data sheet's peak."""
    for name, rows in cards.items():
        sheet, facts = gpu_of(rows[0].gpu), facts_of(rows)
        for line in lines_of(rows):
            if sheet and line.value and (peak := sheet_peak(sheet, line, facts)):
                detail = f"{line.value:.0f} of {peak:.0f} {line.unit}"
                where = f"{name}: {line.instrument}, {line.work}"
                yield Case(where, line.value > peak, detail, line.value / peak)
