"""A comparison as a PDF and as a page of the web edition, with one figure.

Launch: python -m scripts.stages.comparison_page COMPARISON.json FOLDER, with the file written by `python -m
cs336_systems.compare --json`; writes comparison.pdf, .html, .svg and .typ into the folder.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pandas import DataFrame

from cs336_systems.compare.comparison import NOT_CALIBRATED
from cs336_systems.compare.speed import FASTER, SAME, SLOWER, VERDICTS
from cs336_systems.record.machine import SOFTWARE
from scripts.rendering.answer import say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table, Typst, escape
from scripts.stages.short_page import REPORT, inline, write_pages
from scripts.stages.writeup import environment
from scripts.tools.log import shortened

NAMES = SOFTWARE | {"gpu": "GPU", "cpu": "processor", "git_commit": "commit"}
RATIOS: Columns = {
    "time": "{time}",
    "A": "{a:.4g} {unit}",
    "B": "{b:.4g} {unit}",
    "B / A": "{ratio:.3f} [{low:.3f}, {high:.3f}]",
    "bound": "{bound}",
    "verdict": "{verdict}",
}
COSTS: Columns = {
    "step": "{time}",
    "price of 10⁶ tokens": {"A": "{price_a:.3g}", "B": "{price_b:.3g}"},
    "J per token": {"A": "{joules_a:.3g}", "B": "{joules_b:.3g}"},
}
"""Columns of the tables, as in `grid`."""
SHOWN = 30
"""Number of rows of a table on paper; the web edition has all."""
MOST_NAMED = 10

Comparison = Mapping[str, Any]


def page(comparison: Comparison, picture: str) -> str:
    """The comparison as Typst source, with its figure as SVG."""
    cells = comparison["cells"]
    changed = {
        f"The {len(most)} times that are {verdict}{f', the first {SHOWN}' if len(most) > SHOWN else ''}.": ratios(
            most[:SHOWN]
        ).markup()
        for verdict in (SLOWER, FASTER)
        if (most := most_changed(cells, verdict))
    }
    with_costs = [cell for cell in cells if cell["cost_a"] and cell["cost_b"]]
    with_costs.sort(key=lambda cell: not cell["cost_a"]["by_counter"])
    widened = comparison["widened"]
    return (
        environment(REPORT)
        .get_template("comparison.typ.j2")
        .render(
            picture=picture,
            comparison=comparison,
            verdict=headline(comparison),
            widened=Typst(
                "" if widened == 1 else f", times {widened:.2f}, since cells of unchanged code differ that much here"
            ),
            uncalibrated=uncalibrated(cells),
            differs=differing(comparison["differs"]),
            code=code(comparison["same_code"]),
            by_experiment=by_experiment(cells).markup(),
            changed=changed,
            costs=costs(with_costs[:SHOWN]).markup() if with_costs else "",
            costs_caption=costs_caption(with_costs),
            reasons=reasons(cells).markup(),
            only=only(comparison),
            all_cells=ratios(cells).markup(),
        )
    )


def headline(comparison: Comparison) -> str:
    """The verdict on the whole, in one sentence."""
    counts = comparison["counts"]
    if counts[SLOWER] and counts[FASTER]:
        return f"{counts[SLOWER]} times are slower in B, {counts[FASTER]} faster."
    for verdict in (SLOWER, FASTER):
        if counts[verdict]:
            subject = "1 time is" if counts[verdict] == 1 else f"{counts[verdict]} times are"
            return f"{subject} {verdict} in B, and none changed in the other direction."
    return "No time is faster or slower." if counts[SAME] else "Nothing can be decided."


def uncalibrated(cells: Sequence[Comparison]) -> str:
    """The sentence about communication-bound times; empty if there are none."""
    count = sum(cell["reason"] == NOT_CALIBRATED for cell in cells)
    subject = "1 time is" if count == 1 else f"{count} times are"
    return f"{subject} {NOT_CALIBRATED}, so without a verdict." if count else ""


def most_changed(cells: Sequence[Comparison], verdict: str) -> list[Comparison]:
    """The cells with a verdict, the largest change first."""
    changed = [cell for cell in cells if cell["verdict"] == verdict]
    return sorted(changed, key=lambda cell: -abs(math.log(cell["ratio"])))


def differing(differs: Mapping[str, Sequence[str]]) -> Typst:
    """A table of differences between the two runs, or a sentence if there are none."""
    if not differs:
        return escape("Both runs have the same hardware, driver, versions and commit.")
    return Table(["", "A", "B"], [[NAMES.get(name, name), *both] for name, both in differs.items()], 3).markup()


def code(same: Mapping[str, bool]) -> Typst:
    """Which experiments were measured with other code."""
    changed = [name for name, each in same.items() if not each]
    if not changed:
        return escape("The measured code is the same.")
    return say("The measured code differs in {names:listing}.", names=changed)


def by_experiment(cells: Sequence[Comparison]) -> Table:
    """Counts of verdicts by experiment."""
    lines = []
    for name in dict.fromkeys(cell["experiment"] for cell in cells):
        mine = [cell for cell in cells if cell["experiment"] == name]
        counts = Counter(cell["verdict"] for cell in mine)
        bound = sum(cell["bound"] == "host" for cell in mine)
        lines.append([name, *(str(counts[verdict]) for verdict in VERDICTS), str(bound)])
    return Table(["experiment", *VERDICTS, "host-bound"], lines)


def ratios(cells: Sequence[Comparison]) -> Table:
    """Cells with both medians, the ratio and its interval, the bound and the verdict."""
    return grid(DataFrame({**cell, "time": label(cell)} for cell in cells), RATIOS)


def label(cell: Comparison) -> str:
    """A cell in words."""
    return ": ".join(part for part in (cell["cell"], cell["details"], cell["metric"]) if part)


def costs(cells: Sequence[Comparison]) -> Table:
    """Price and energy of the tokens of training steps."""
    sides = ("a", "b")
    rows = [
        {f"{name}_{side}": (cell[f"cost_{side}"] or {}).get(name) for side in sides for name in ("price", "joules")}
        | {"time": label(cell)}
        for cell in cells
    ]
    return grid(DataFrame(rows), COSTS)


def costs_caption(cells: Sequence[Comparison]) -> str:
    """A sentence about the energies."""
    first = f"Cost of tokens{f', the first {SHOWN} of {len(cells)} steps' if len(cells) > SHOWN else ''}. "
    return (
        first + "Energy is from the driver's counter if the cell read it, else the cell's median power times the step."
    )


def reasons(cells: Sequence[Comparison]) -> Table:
    """The number of undecided times, by reason."""
    counts = Counter(
        re.sub(r"only a change.*", "the change is too small to be detected", cell["reason"]) for cell in cells
    )
    untold = [(reason, count) for reason, count in counts.most_common() if reason]
    return Table(["reason", "times"], [[reason, str(count)] for reason, count in untold] or [["none", "0"]])


def only(comparison: Comparison) -> Typst:
    """The cells that only one side has, counted and named."""
    sentences = []
    for side in ("A", "B"):
        names = comparison[f"only_{side.lower()}"]
        if names:
            shown = shortened(names, MOST_NAMED, "; ")
            sentences.append(f"{len(names)} cells are only in {side}: {shown}.")
    return escape(" ".join(sentences) or "Each cell is in both runs.")


def write(comparison_file: Path, folder: Path) -> None:
    """Write the figure, the PDF and the page."""
    from scripts.stages.comparison_figure import draw  # imported here, since it imports matplotlib

    comparison = json.loads(comparison_file.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "comparison.svg"
    draw(comparison, picture)
    write_pages(page(comparison, inline(picture)), folder, "comparison", text_columns=1)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
