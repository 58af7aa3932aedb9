"""The ratios of a comparison as a figure: a line per experiment, a mark per time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter
from pandas import DataFrame, factorize

from cs336_systems.compare.speed import FASTER, SAME, SLOWER, UNDECIDED
from scripts.rendering.style import COLOURS, legend, note, save, subplots

LOOKS: Mapping[str, tuple[str, str, float]] = {
    UNDECIDED: ("#bbbbbb", ".", 2.5),
    SAME: ("#666666", "o", 2.5),
    FASTER: (COLOURS[2], "<", 5),
    SLOWER: (COLOURS[5], ">", 5),
}
"""Colour, mark and size of each verdict, the most important ones on top."""
SPREAD = 0.32
"""Half the height of an experiment's marks, relative to the distance of two experiments."""
TICKS = ((1.8, (1.5, 2.0, 3.0)), (1.25, (1.1, 1.25, 1.5)), (0.0, (1.05, 1.1, 1.2)))
"""Ratios above 1 that are labelled on the axis, by the largest one shown."""
WIDEST = 3.0
"""Ratios beyond this are drawn at the edge."""


def draw(comparison: Mapping[str, Any], output: Path) -> None:
    """Ratios on a logarithmic axis, with the interval of each time that changed; host-bound times are omitted."""
    cells = DataFrame(cell for cell in comparison["cells"] if cell["bound"] != "host")
    if not len(cells):
        save(note("all times are host-bound, so no ratio is drawn"), output)
        return
    cells[["ratio", "low", "high"]] = cells[["ratio", "low", "high"]].clip(1 / WIDEST, WIDEST)
    # The height of a mark: its experiment's line, and across it its rank among the experiment's times.
    lines, experiments = factorize(cells["experiment"])
    of_experiment = cells.groupby(lines)["ratio"]
    ranks = (of_experiment.cumcount() + 0.5) / of_experiment.transform("size")
    cells["height"] = lines + SPREAD * (2 * ranks - 1)
    figure, (axes,) = subplots(height=1.2 + 0.32 * len(experiments))
    for verdict, (colour, mark, size) in LOOKS.items():
        chosen = cells[cells["verdict"] == verdict]
        if verdict in (FASTER, SLOWER):
            axes.hlines(chosen["height"], chosen["low"], chosen["high"], color=colour, linewidth=0.7)
        if len(chosen):
            axes.plot(chosen["ratio"], chosen["height"], mark, color=colour, markersize=size, label=verdict, mew=0)
    margin = comparison["margin"]
    axes.axvspan(1 / (1 + margin), 1 + margin, color="#000000", alpha=0.07, linewidth=0)
    axes.set_xscale("log")
    reach = max(1.1, *axes.get_xlim(), *(1 / edge for edge in axes.get_xlim()))
    axes.set_xlim(1 / reach, reach)
    above = next(ticks_above for least, ticks_above in TICKS if reach >= least)
    ticks = [tick for tick in (*above, 1.0, *(1 / tick for tick in above)) if 1 / reach <= tick <= reach]
    axes.set_xticks(ticks, minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.2f}"))
    axes.set_yticks(range(len(experiments)), experiments)
    axes.set_ylim(len(experiments) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time of B / time of A")
    legend([axes], ncols=4, fontsize=8)
    save(figure, output)
