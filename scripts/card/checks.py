"""Checks of recorded cards: whether their numbers can be those of such a GPU."""

from collections.abc import Sequence

from cs336_systems.measure.gpus import gpu_of
from scripts.card.expected import sheet_peak
from scripts.card.lines import facts_of, lines_of
from scripts.card.record import RecordedCard
from scripts.checks import Case, Check, Evidence, check
from scripts.checks.data_sheet import memory_of_a_card


def possible(cards: Sequence[RecordedCard]) -> list[Check]:
    """Check what a data sheet allows."""
    return [cards_have_their_memory(cards), rates_are_below_the_peak(cards)]


@check("{n} cards")
def cards_have_their_memory(cards: Sequence[RecordedCard]) -> Evidence:
    """Each card has the memory of its data sheet, in GB or in GiB, but for the driver's share."""
    for each in cards:
        if sheet := gpu_of(each.card["gpu"]):
            yield memory_of_a_card(sheet, each.name, each.card["gpu_memory"])


@check("{n} rates; the closest reaches {most:.0%}")
def rates_are_below_the_peak(cards: Sequence[RecordedCard]) -> Evidence:
    """No rate of a card is above its data sheet's peak."""
    for each in cards:
        if not (sheet := gpu_of(each.card["gpu"])):
            continue
        for line in lines_of(each.rows):
            if line.value and (peak := sheet_peak(sheet, line, facts_of(each.rows))):
                found = f"{line.value:.0f} of {peak:.0f} {line.unit}"
                where = f"{each.name}: {line.instrument}, {line.work}"
                yield Case(where, line.value > peak, found, line.value / peak)
