"""Weak scaling of every way to train on several ranks."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from scripts.rendering.style import NotDrawn, legend, look_of_line, subplots
from scripts.views.data import select
from scripts.views.scaling import scaling


def draw(data_parallel: DataFrame, fsdp: DataFrame) -> Figure:
    """A panel per model and setting: the step without communication over each contender's, by number of ranks."""
    efficiencies = scaling({"data_parallel": data_parallel, "fsdp": fsdp})
    if not len(efficiencies):
        raise NotDrawn("no device-bound step without communication was measured on this machine")
    panels = list(dict.fromkeys(efficiencies["panel"]))
    lines = max(select(efficiencies, panel=panel)["title"].nunique() for panel in panels)
    height = 0.9 + len(panels) * (0.25 + 0.17 * lines)
    figure, all_axes = subplots(rows=len(panels), height=height, sharex=True, sharey=False)
    least, most = (100 * end for end in (efficiencies["efficiency"].min(), max(efficiencies["efficiency"].max(), 1.0)))
    ends = least - 0.1 * (most - least), most + 0.1 * (most - least)
    ranks = sorted(efficiencies["processes"].unique())
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_panel(axes, select(efficiencies, panel=panel), [int(number) for number in ranks])
        axes.set_xlim(*ends)
        axes.set_title(panel, fontsize=8.5)
    all_axes[-1].set_xlabel("efficiency / %")
    legend(all_axes, ncols=len(ranks) + 1)
    return figure


def draw_panel(axes: Axes, panel: DataFrame, ranks: list[int]) -> None:
    """A row per contender, with a mark for each number of ranks, and the numbers after its name."""
    titles = list(dict.fromkeys(panel["title"]))
    axes.axvline(100, color="black", linewidth=0.8, linestyle="--", label="no communication")
    noun = "GPUs" if (panel["gpu"] != "").all() else "processes"
    for place, number in enumerate(ranks):
        rows = select(panel, processes=number)
        heights = [titles.index(title) for title in rows["title"]]
        look = look_of_line(place) | {"linestyle": "", "markersize": 5}
        axes.plot(100 * rows["efficiency"], heights, label=f"{number} {noun}", **look)
    shares = {title: [f"{100 * share:.1f}" for share in select(panel, title=title)["efficiency"]] for title in titles}
    axes.set_yticks(range(len(titles)), [f"{title}: {', '.join(shares[title])}" for title in titles], fontsize=7)
    axes.set_ylim(len(titles) - 0.5, -0.7)
