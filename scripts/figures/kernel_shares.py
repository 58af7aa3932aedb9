"""How the kernels' time divides into categories, inference next to the training step, by model size."""

from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.measure.kernel_names import CATEGORIES
from cs336_systems.sizes import size_name
from scripts.rendering.style import NotDrawn, legend, look_of_bar, stacked_bar, subplots
from scripts.views.data import PRECISIONS, reference_context, select, size_order
from scripts.views.kernels import MODES_PROFILED, kernels, shares

BAR, APART = 0.38, 0.2
"""Width of a bar, and its distance from the middle of its size."""


def draw(table: DataFrame) -> Figure:
    """Stacked shares, one panel per precision; left of each size inference, right the training step."""
    data = select(table, compiled=False, attention="plain")
    data = select(data, context=reference_context(data))
    launched = kernels(data)
    if not len(launched):
        raise NotDrawn("no kernel was profiled")
    sizes = size_order(launched)
    shown = [name for name in CATEGORIES if name in set(launched["category"])]
    looks = {name: look_of_bar(name, index) for index, name in enumerate(shown)}
    precisions = [name for name in PRECISIONS if name in set(launched["precision"])]
    figure, panels = subplots(len(precisions), height=3.0)
    for axes, precision in zip(panels, precisions, strict=True):
        for position, size in enumerate(sizes):
            for side, mode in zip((-APART, APART), MODES_PROFILED, strict=True):
                share = shares(select(launched, size=size, precision=precision, mode=mode))
                parts = {category: 100 * share[category] for category in shown} if share else {}
                stacked_bar(axes, position + side, BAR, parts, looks, text=mode[0].upper() if share else "n/m")
        lost = " (n/m: not measured)" if "n/m" in {text.get_text() for text in axes.texts} else ""
        axes.set_xticks(range(len(sizes)), list(map(size_name, sizes)), fontsize=7.5)
        axes.set(title=f"{precision}, context {data['context'].iloc[0]}", xlabel=f"model size{lost}")
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("share of time / %")
    legend(panels, ncols=5)
    return figure
