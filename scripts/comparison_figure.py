"""The ratios of a comparison as a figure: a line per experiment, a mark per time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from matplotlib.ticker import FuncFormatter

from cs336_systems.compare.statistics import FASTER, SAME, SLOWER, UNTOLD
from scripts.rendering.style import COLOURS, legend, save, save_note, subplots

LOOKS: Mapping[str, tuple[str, str, float]] = {
    UNTOLD: ("#bbbbbb", ".", 2.5),
    SAME: ("#666666", "o", 2.5),
    FASTER: (COLOURS[2], "<", 5),
    SLOWER: (COLOURS[5], ">", 5),
}
"""Colour, mark and size of each verdict, those that matter most on top."""
SPREAD = 0.32
"""Half the height of an experiment's marks, in the distance of two experiments."""
TICKS = ((1.8, (1.5, 2.0, 3.0)), (1.25, (1.1, 1.25, 1.5)), (0.0, (1.05, 1.1, 1.2)))
"""Ratios above 1 that are written on the axis, by the largest one that is shown."""
WIDEST = 3.0
"""Ratios beyond this are drawn at the edge."""


def draw(comparison: Mapping[str, Any], output: Path) -> None:
    """Ratios on a logarithmic axis, with the interval of each time that changed; host-bound times are left out."""
    cells = [cell for cell in comparison["cells"] if cell["bound"] != "host"]
    if not cells:
        save_note("all times are host-bound, so no ratio is drawn", output)
        return
    experiments = list(dict.fromkeys(cell["experiment"] for cell in cells))
    figure, (axes,) = subplots(height=1.2 + 0.32 * len(experiments))
    heights = places(cells, experiments)
    for verdict, (colour, mark, size) in LOOKS.items():
        chosen = [index for index, cell in enumerate(cells) if cell["verdict"] == verdict]
        ratios = numpy.clip([cells[index]["ratio"] for index in chosen], 1 / WIDEST, WIDEST)
        if verdict in (FASTER, SLOWER):
            bounds = [(cells[index]["low"], cells[index]["high"]) for index in chosen]
            ends = numpy.clip(numpy.array(bounds).reshape(-1, 2), 1 / WIDEST, WIDEST)
            axes.hlines([heights[index] for index in chosen], ends[:, 0], ends[:, 1], color=colour, linewidth=0.7)
        if chosen:
            axes.plot(
                ratios, [heights[index] for index in chosen], mark, color=colour, markersize=size, label=verdict, mew=0
            )
    margin = comparison["margin"]
    axes.axvspan(1 / (1 + margin), 1 + margin, color="#000000", alpha=0.07, linewidth=0)
    axes.set_xscale("log")
    reach = max(1.1, *axes.get_xlim(), *(1 / edge for edge in axes.get_xlim()))
    axes.set_xlim(1 / reach, reach)
    above = next(found for least, found in TICKS if reach >= least)
    ticks = [tick for tick in (*above, 1.0, *(1 / tick for tick in above)) if 1 / reach <= tick <= reach]
    axes.set_xticks(ticks, minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.2f}"))
    axes.set_yticks(range(len(experiments)), experiments)
    axes.set_ylim(len(experiments) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time of B over time of A")
    legend([axes], ncols=4, fontsize=8)
    save(figure, output)


def places(cells: Sequence[Mapping[str, Any]], experiments: Sequence[str]) -> list[float]:
    """The height of each cell: its experiment's line, and across it its rank among the experiment's cells."""
    found = []
    counts = {name: sum(cell["experiment"] == name for cell in cells) for name in experiments}
    seen = dict.fromkeys(experiments, 0)
    for cell in cells:
        name = cell["experiment"]
        seen[name] += 1
        found.append(experiments.index(name) + SPREAD * (2 * (seen[name] - 0.5) / counts[name] - 1))
    return found
