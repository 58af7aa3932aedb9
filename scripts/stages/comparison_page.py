"""A comparison as a PDF and as a page of the web edition, with one figure.

Launch: python -m scripts.stages.comparison_page COMPARISON.json FOLDER, with the file written by `python -m
cs336_systems.compare --json`; writes comparison.pdf, .html, .svg and .typ into the folder.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from pandas import DataFrame, crosstab, json_normalize

from cs336_systems.compare.speed import FASTER, SAME, SLOWER, VERDICTS
from cs336_systems.record.machine import SOFTWARE
from scripts.rendering.answer import plural, say
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
    "price of 10⁶ tokens": {"A": "{cost_a_price:.3g}", "B": "{cost_b_price:.3g}"},
    "J per token": {"A": "{cost_a_joules:.3g}", "B": "{cost_b_joules:.3g}"},
}
"""Columns of the tables, as in `grid`."""
COST = [f"cost_{side}_{name}" for side in "ab" for name in ("price", "joules", "by_counter")]
ENERGY = "Energy: the driver's counter if the cell read it, otherwise the cell's median power times the step time."
SHOWN = 30
"""Number of rows of a table on paper; the web edition has all."""
MOST_NAMED = 10

Comparison = Mapping[str, Any]


def page(comparison: Comparison, picture: str) -> str:
    """The comparison as Typst source, with its figure as SVG."""
    cells = json_normalize(comparison["cells"], sep="_")
    names = cells[["cell", "details", "metric"]].itertuples(index=False, name=None)
    cells["time"] = [": ".join(filter(None, name)) for name in names]
    cells["change"] = numpy.log(cells["ratio"]).abs()
    with_costs = cells.reindex(columns=["time", *COST]).dropna(subset=["cost_a_by_counter", "cost_b_by_counter"])
    with_costs = with_costs.sort_values("cost_a_by_counter", ascending=False, kind="stable")
    widened = comparison["widened"]
    return (
        environment(REPORT)
        .get_template("comparison.typ.j2")
        .render(
            picture=picture,
            comparison=comparison,
            verdict=headline(comparison),
            widened=Typst("" if widened == 1 else f", scaled by {widened:.2f} for these two runs"),
            differs=differing(comparison["differs"]),
            code=code(comparison["same_code"]),
            by_experiment=by_experiment(cells).markup(),
            changed=changed(cells),
            costs=grid(with_costs[:SHOWN], COSTS).markup() if len(with_costs) else "",
            costs_caption=f"Cost of tokens{first_of(with_costs)}. {ENERGY}",
            reasons=reasons(cells["reason"]).markup(),
            only=only(comparison),
            all_cells=grid(cells, RATIOS).markup(),
        )
    )


def headline(comparison: Comparison) -> str:
    """The verdict on the whole, in one sentence."""
    counts = comparison["counts"]
    if counts[SLOWER] and counts[FASTER]:
        return f"{times_are(counts[SLOWER])} slower in B, {counts[FASTER]} faster."
    for verdict, opposite in ((SLOWER, FASTER), (FASTER, SLOWER)):
        if counts[verdict]:
            return f"{times_are(counts[verdict])} {verdict} in B; none is {opposite}."
    return "No time is faster or slower." if counts[SAME] else "Nothing can be decided."


def times_are(number: int) -> str:
    """The subject and the verb of a sentence about some times."""
    return f"{number} {plural(number, 'time')} {'is' if number == 1 else 'are'}"


def first_of(rows: DataFrame) -> str:
    """The part of a caption that says that a table shows only the first rows."""
    return f" ({SHOWN} of {len(rows)})" if len(rows) > SHOWN else ""


def changed(cells: DataFrame) -> dict[str, Typst]:
    """Tables of slower and of faster times, the largest change first, by their captions."""
    tables = {}
    for verdict in (SLOWER, FASTER):
        rows = cells[cells["verdict"] == verdict].sort_values("change", ascending=False, kind="stable")
        if len(rows):
            caption = f"{verdict.capitalize()} times, largest change first{first_of(rows)}."
            tables[caption] = grid(rows[:SHOWN], RATIOS).markup()
    return tables


def differing(differs: Mapping[str, Sequence[str]]) -> Typst:
    """A table of differences between the two runs, or a sentence if there are none."""
    if not differs:
        return escape("Both runs have the same hardware, driver, versions and commit.")
    return Table(["", "A", "B"], [[NAMES.get(name, name), *both] for name, both in differs.items()], 3).markup()


def code(same: Mapping[str, bool]) -> Typst:
    """Which experiments were measured with different code."""
    others = [name for name, each in same.items() if not each]
    return say("The measured code differs for {names:listing}.", names=others) or escape(
        "The measured code is the same."
    )


def by_experiment(cells: DataFrame) -> Table:
    """Counts of verdicts by experiment."""
    names = cells["experiment"]
    counts = crosstab(names, cells["verdict"]).reindex(index=names.unique(), columns=VERDICTS, fill_value=0)
    counts["host-bound"] = (cells["bound"] == "host").groupby(names).sum()
    return Table(
        ["experiment", *counts.columns], [[name, *map(str, numbers)] for name, *numbers in counts.itertuples()]
    )


def reasons(given: Iterable[str]) -> Table:
    """The number of undecided times, by reason."""
    counts = Counter(
        re.sub(r"only a change.*", "the change is too small to be detected", each) for each in given if each
    )
    return Table(["reason", "times"], [[each, str(count)] for each, count in counts.most_common()] or [["none", "0"]])


def only(comparison: Comparison) -> Typst:
    """The cells of only one side, counted and named."""
    sentences = []
    for side in ("A", "B"):
        names = comparison[f"only_{side.lower()}"]
        if names:
            shown = shortened(names, MOST_NAMED, "; ")
            sentences.append(f"{side} alone has {len(names)} {plural(len(names), 'cell')}: {shown}.")
    return escape(" ".join(sentences) or "Both runs have the same cells.")


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
