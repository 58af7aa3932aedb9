"""Colours, marks and names of attention implementations in figures."""

from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from scripts.rendering.style import COLOURS, LINES, MARKERS
from scripts.views.attention_calls import titles

SHIFT = 3
"""A repeated colour has another mark and style."""
THICK, THIN = 2.2, 1.4
FIRST = sorted(Flash.contenders, key=lambda contender: (not contender.emphasized, not contender.foreign))
"""Ours and the libraries first: their colours are not shared."""


def looks(table: DataFrame) -> dict[str, dict[str, Any]]:
    """The looks of a whole table of `flash`: ours and a user's have thick lines; no two have the same style and mark.

    An implementation of the registry looks the same in any table; a user's own get the following looks.
    """
    thin = {contender.name for contender in Flash.contenders if not contender.emphasized}
    places = {contender.name: place for place, contender in enumerate(FIRST)}
    chosen = {}
    for name, title in titles(table).items():
        place = places.setdefault(name, len(places))
        turn = place + SHIFT * (place // len(COLOURS))
        chosen[name] = {
            "label": title,
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[turn % len(MARKERS)],
            "linestyle": LINES[turn % len(LINES)],
            "linewidth": THIN if name in thin else THICK,
        }
    return chosen
