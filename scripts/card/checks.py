"""Checks of recorded cards: whether their numbers can be those of such a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from cs336_systems.measure.gpus import gpu_of
from scripts.card.expected import sheet_peak
from scripts.card.lines import facts_of, lines_of
from scripts.checks import Case, Check, Evidence, check
from scripts.checks.data_sheet import memory_of_a_card

Cards = Mapping[str, Sequence[Any]]
"""The rows of runs by name."""


def possible(cards: Cards) -> list[Check]:
    """Check what a data sheet allows."""
    return [cards_have_their_memory(cards), rates_are_below_the_peak(cards)]


@check("{n} cards")
def cards_have_their_memory(cards: Cards) -> Evidence:
    """Each card has the memory of its data sheet, in GB or in GiB, but for the driver's share."""
    for name, rows in cards.items():
        if sheet := gpu_of(rows[0].gpu):
            yield memory_of_a_card(sheet, name, rows[0].gpu_memory)


@check("{n} rates; the closest reaches {most:.0%}")
def rates_are_below_the_peak(cards: Cards) -> Evidence:
    """No rate of a card is above its data sheet's peak."""
    for name, rows in cards.items():
        sheet, facts = gpu_of(rows[0].gpu), facts_of(rows)
        for line in lines_of(rows):
            if sheet and line.value and (peak := sheet_peak(sheet, line, facts)):
                complaint = f"{line.value:.0f} of {peak:.0f} {line.unit}"
                where = f"{name}: {line.instrument}, {line.work}"
                yield Case(where, line.value > peak, complaint, line.value / peak)
