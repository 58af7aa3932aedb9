"""What figures call attention implementations, and how they draw them."""

from typing import Any

from scripts.rendering.style import COLOURS, LINES, MARKERS
from scripts.views.attention_calls import NAMES

SHIFT = 3
"""Where a colour comes a second time, it comes with another mark and style."""
LOOKS: dict[str, dict[str, Any]] = {
    name: {
        "label": title,
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + SHIFT * (index // len(COLOURS))) % len(MARKERS)],
        "linestyle": LINES[(index + SHIFT * (index // len(COLOURS))) % len(LINES)],
        "linewidth": 2.2 if name in ("tiled", "triton") else 1.1,
    }
    for index, (name, title) in enumerate(NAMES.items())
}
"""Ours has a thick line; no two in a panel have the same style and mark."""
