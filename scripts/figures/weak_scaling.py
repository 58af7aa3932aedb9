"""Weak scaling of every way to train on several ranks: the step without communication over the step with it."""

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, isna

from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.rendering.style import NotDrawn, legend, look_of_line, subplots
from scripts.views.comparison import OWN, Kind, cells_of, contenders, device_bound, fastest, names_in, setting_name
from scripts.views.data import select
from scripts.views.data_parallel import OURS, PYTORCH

COLUMNS = ["panel", "title", "processes", "gpu", "efficiency"]


def draw(data_parallel: DataFrame, fsdp: DataFrame) -> Figure:
    """A panel per model and setting: the step without communication over each contender's, by number of ranks."""
    efficiencies = scaling(data_parallel, fsdp)
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


def scaling(data_parallel: DataFrame, fsdp: DataFrame) -> DataFrame:
    """One row per contender and number of ranks, in device-bound cells with a steady step without communication.

    Columns: `panel`, model and setting; `title`; `processes`; `gpu`, empty on a CPU; `efficiency`, 1 if communication
    costs nothing. For data-parallel wrappers with several settings, only the fastest.
    """
    rows: list[dict[str, object]] = []
    for cell in cells_of(device_bound(contenders(DataParallelTraining, data_parallel))):
        names = {**{title: [name] for name, title in OURS.items()}, "PyTorch DDP": PYTORCH}
        names |= {name: [name] for name in names_in(cell, OWN)}
        rows += rows_of(DataParallelTraining, {title: fastest(cell, each) for title, each in names.items()})
    for cell in cells_of(device_bound(contenders(FullyShardedTraining, fsdp))):
        rows += rows_of(FullyShardedTraining, {row["title"]: row for _, row in cell.iterrows()})
    return DataFrame(rows, columns=COLUMNS)


def rows_of(kind: Kind, named: Mapping[str, Series | None]) -> Iterator[dict[str, object]]:
    """The rows of a cell's contenders; none for its baseline, and where that is not steady."""
    for title, row in named.items():
        if row is not None and not isna(row["exposed"]):
            panel = f"{row['label']}, {setting_name(kind, row)}"
            yield {**row, "panel": panel, "title": title, "efficiency": row["baseline"] / row["median"]}


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
