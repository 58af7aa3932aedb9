"""The scatter of repeated steps: every timed step against the median of its cell, and every cell's spread."""

from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.style import COLOURS, MARKERS, NotDrawn, legend, log_scale, subplots
from scripts.views.spread import WIDE
from scripts.views.steps import OUTLIER, steady, step_table


def draw(end_to_end: DataFrame) -> Figure:
    """Left: single steps in their order. Right: spread against the time of the step, host-bound or not."""
    steps = steady(step_table(end_to_end))
    steps = steps[steps["std"].notna() & (steps["samples"].map(len) > 0)]
    if not len(steps):
        raise NotDrawn("no samples of repeated steps were kept")
    figure, (single, spread) = subplots(2, height=2.7, sharey=False)
    for _, step in steps.iterrows():
        ratios = [sample / step["step"] for sample in step["samples"]]
        single.plot(range(1, len(ratios) + 1), ratios, ".", color=COLOURS[0], alpha=0.35, markersize=4)
    single.axhline(OUTLIER, color="black", linewidth=0.8, linestyle="--")
    single.set(xlabel="number of the timed step", ylabel="step / median of its cell")
    groups: dict[str, DataFrame] = {"all cells": steps}
    if steps["busy"].notna().any():
        groups = {"device-bound": steps[~steps["host_bound"]], "host-bound": steps[steps["host_bound"]]}
    for index, (title, cells) in enumerate(groups.items()):
        variation = 100 * cells["std"] / cells["mean"]
        spread.plot(
            cells["step"], variation, MARKERS[index], color=COLOURS[index], label=title, markersize=4, mfc="none"
        )
    spread.axhline(100 * WIDE, color="black", linewidth=0.8, linestyle="--")
    log_scale(spread.xaxis)
    log_scale(spread.yaxis)
    spread.set(xlabel="median step / ms", ylabel="std / mean / %")
    legend([spread], ncols=2)
    return figure
