"""Exposed communication and step time against the size of buckets, next to the model's prediction."""

import math
from functools import partial

from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.figure import Figure
from numpy import add
from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.style import COLOURS, MARKERS, NotDrawn, legend, subplots
from scripts.views.bucket_sizes import bucket_model, predicted
from scripts.views.comparison import contenders, device_bound, preferred_cells
from scripts.views.data import select

COLUMNS = 3
"""At most."""


def draw(table: DataFrame, all_reduce: DataFrame) -> Figure:
    """One panel per device-bound cell; the line through the all-reduces gives the model's constants."""
    rows = contenders(DataParallelTraining, table)
    cells_in_order = preferred_cells(device_bound(rows))
    cells = [cell for cell in cells_in_order if select(cell, contender="bucketed")["exposed"].notna().any()]
    if not cells:
        raise NotDrawn("not measured")
    lines = math.ceil(len(cells) / COLUMNS)
    columns = math.ceil(len(cells) / lines)
    figure, panels = subplots(columns, rows=lines, height=0.9 + 1.9 * lines, sharey=False)
    for index, (axes, cell) in enumerate(zip(panels, cells, strict=False)):
        sizes = select(cell, contender="bucketed")
        places = range(len(sizes))
        errors = [sizes["exposed"] - sizes["exposed_least"], sizes["exposed_most"] - sizes["exposed"]]
        axes.errorbar(
            places, sizes["exposed"], yerr=errors, color=COLOURS[0], marker=MARKERS[0], capsize=2, label="measured"
        )
        if model := bucket_model(all_reduce, cell):
            expected = [predicted(model, row) for _, row in sizes.iterrows()]
            axes.plot(places, expected, color=COLOURS[1], marker=MARKERS[1], linestyle="--", label="model")
        axes.set_xticks(places, sizes["bucket_mb"])
        axes.set_xlabel("bucket / MB")
        axes.set_title(cell["cell"].iloc[0], fontsize=8.5)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        step = step_axis(axes, float(sizes["baseline"].iloc[0]))
        if index % columns == 0:
            axes.set_ylabel("exposed / ms")
        if index % columns == columns - 1 or cell is cells[-1]:
            step.set_ylabel("step / ms")
    for axes in panels[len(cells) :]:
        axes.axis("off")
    legend(panels, ncols=2, reverse=True)  # Measured first.
    return figure


def step_axis(axes: Axes, baseline: float) -> SecondaryAxis:
    """A scale on the right for the step's time: the baseline plus the exposed communication."""
    step = axes.secondary_yaxis("right", functions=(partial(add, baseline), partial(add, -baseline)))
    step.spines["right"].set_visible(True)
    return step
