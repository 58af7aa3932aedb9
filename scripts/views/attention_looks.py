"""How figures draw attention implementations, and what they call them."""

from typing import Any

from pandas import DataFrame

from cs336_systems.experiments.flash import Flash
from scripts.rendering.style import COLOURS, LINES, MARKERS
from scripts.views.attention_calls import titles

SHIFT = 3
"""Where a colour comes a second time, it comes with another mark and style."""
THICK, THIN = 2.2, 1.4
FIRST = sorted(Flash.contenders, key=lambda contender: (not contender.emphasized, not contender.foreign))
"""Ours and the libraries first: they have the colours that nobody shares."""


def looks(table: DataFrame) -> dict[str, dict[str, Any]]:
    """Those of a whole table of `flash`: ours and a user's have thick lines; no two have the same style and mark.

    Each of the registry has the same look whichever others are there, and a user's own have those after it.
    """
    thin = {contender.name for contender in Flash.contenders if not contender.emphasized}
    places = {contender.name: place for place, contender in enumerate(FIRST)}
    found = {}
    for name, title in titles(table).items():
        place = places.setdefault(name, len(places))
        turn = place + SHIFT * (place // len(COLOURS))
        found[name] = {
            "label": title,
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[turn % len(MARKERS)],
            "linestyle": LINES[turn % len(LINES)],
            "linewidth": THIN if name in thin else THICK,
        }
    return found
