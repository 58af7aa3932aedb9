"""The gain of bf16 at each context length: in the time that the device works, and in the time of a step."""

from scripts.rendering.style import NotDrawn, legend, look_of_line, save, subplots
from scripts.views.data import load_at_one_setting, select
from scripts.views.precisions import precision_pairs
from scripts.views.steps import most_complete, steady, step_table

PANELS = {"device_gain": "time that the device works", "gain": "time of the step (hollow: host-bound)"}


def draw(table: str, output: str) -> None:
    """Speed-up of forward and backward against context, one line per size; the device's panel only for GPUs."""
    steps = steady(step_table(load_at_one_setting("end_to_end", table)))
    pairs = precision_pairs(most_complete(select(steps, compiled=False, attention="plain")))
    panels = {column: title for column, title in PANELS.items() if pairs[column].notna().any()}
    if not panels:
        raise NotDrawn("no step was measured in both precisions")
    figure, axes_row = subplots(len(panels), height=2.9)
    contexts = sorted(pairs["context"].unique())
    for axes, (column, title) in zip(axes_row, panels.items(), strict=True):
        for index, (label, points) in enumerate(pairs.groupby("label", sort=False)):
            look = look_of_line(index)
            axes.plot(points["context"], points[column], label=label, **look)
            hollow = points[points["host_bound"]] if column == "gain" else points[:0]
            axes.plot(hollow["context"], hollow[column], **look | {"linestyle": "", "mfc": "white"})
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(contexts, [str(context) for context in contexts])
        axes.set(title=title, xlabel="context / tokens")
    axes_row[0].set_ylabel("fp32 over bf16")
    axes_row[0].set_ylim(bottom=0)
    legend(axes_row, ncols=6)
    save(figure, output)
