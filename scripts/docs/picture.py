"""README's picture: bars of the times in its table of headline numbers, one row of each kind, as an SVG."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

README = Path("README.md")
ROW = re.compile(r"^\| (?P<title>[^|]+?) \| (?P<own>[\d.]+) ms \| (?P<rivals>.+?) \|$", re.MULTILINE)
RIVAL = re.compile(r"(?P<name>\S.*?) \((?P<time>[\d.]+) ms\): (?:\*\*[\d.]+×\*\*|on par)")
WIDTH, LABELS, HEIGHT, GAP = 860, 260, 20, 12
OWN, OTHER, TEXT = "#0072b2", "#b0b0b0", "#808080"
"""Colours that are visible on light and on dark pages."""
STYLE = "font-family: system-ui, sans-serif; font-size: 13px"


def page(_: str) -> str:
    """The picture of the current table."""
    rows: dict[str, re.Match[str]] = {}
    for row in ROW.finditer(README.read_text(encoding="utf-8")):
        rows.setdefault(row["title"].rpartition(": ")[2], row)
    parts: list[str] = []
    y = 0
    for row in rows.values():
        bars = [("this project", row["own"])]
        bars += [(match["name"].strip(", `"), match["time"]) for match in RIVAL.finditer(row["rivals"])]
        parts += drawn(row["title"], bars, y)
        y += (len(bars) + 1) * HEIGHT + GAP
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" style="{STYLE}">', *parts, "</svg>\n"]
    )


def drawn(title: str, bars: list[tuple[str, str]], y: int) -> Iterator[str]:
    """A title, and below it a bar for each time."""
    yield f'<text x="0" y="{y + 14}" fill="{TEXT}" font-weight="bold">{escape(title)}</text>'
    longest = max(float(time) for _, time in bars)
    for index, (name, time) in enumerate(bars, 1):
        top, length = y + index * HEIGHT, (WIDTH - LABELS - 70) * float(time) / longest
        colour = OWN if index == 1 else OTHER
        yield f'<text x="{LABELS - 8}" y="{top + 14}" fill="{TEXT}" text-anchor="end">{escape(name)}</text>'
        yield f'<rect x="{LABELS}" y="{top + 2}" width="{length:.0f}" height="{HEIGHT - 4}" fill="{colour}"/>'
        yield f'<text x="{LABELS + length + 6:.0f}" y="{top + 14}" fill="{TEXT}">{time} ms</text>'
