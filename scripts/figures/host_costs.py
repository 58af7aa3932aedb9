"""Costs of the host: time per launch against work per launch."""

from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.style import COLOURS, MARKERS, NotDrawn, legend, log_scale, subplots
from scripts.views.data import select
from scripts.views.steps import per_launch, steady, step_table

LOOKS = {False: ("eager", COLOURS[0], MARKERS[0]), True: ("compiled", COLOURS[5], MARKERS[1])}


def draw(end_to_end: DataFrame) -> Figure:
    """A mark per cell of end_to_end, and the line on which the device never waits."""
    steps = per_launch(steady(step_table(end_to_end)))
    if not len(steps):
        raise NotDrawn("not measured: kernel launches need a GPU")
    figure, (axes,) = subplots(height=2.7)
    for compiled, (name, colour, marker) in LOOKS.items():
        rows = select(steps, compiled=compiled)
        if len(rows):
            axes.plot(rows["device"], rows["host"], marker, color=colour, label=name, markersize=3.5, alpha=0.8)
    ends = [steps["device"].min(), steps["host"].max()]
    axes.plot(ends, ends, "--", color="black", linewidth=0.8, label="the device never waits")
    log_scale(axes.xaxis)
    log_scale(axes.yaxis)
    axes.set(xlabel="device busy per launch / µs", ylabel="step per launch / µs")
    legend([axes], ncols=3)
    return figure
