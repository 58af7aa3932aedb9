"""Throughput of attention implementations on shapes with many heads."""

import numpy
from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.flash import Flash
from scripts.rendering.style import NotDrawn, legend, look_of_line, subplots
from scripts.views.attention_calls import titles
from scripts.views.attention_times import call_table
from scripts.views.data import select

BOTH = "forward_backward"
THICK, THIN = 2.2, 1.4
"""Widths of the lines of ours and of a user's own, and of all others."""


def draw(rows: DataFrame) -> Figure:
    """A panel per mask and head dimension; along the axis the shapes, short sequences first, a line per length."""
    cells = select(call_table(rows), precision="bf16", compiled_call=False, host_bound=False)
    cells = cells[cells["kind"].str.startswith("Many")]
    if not len(cells):
        raise NotDrawn("not measured")
    cells = cells.assign(heads_in_all=cells["batch_size"] * cells["heads"])
    shapes = sorted(set(zip(cells["sequence"], cells["heads_in_all"], strict=True)))
    shown = sorted(set(zip(~cells["causal"], cells["d"], strict=True)))
    across, down = min(2, len(shown)), (len(shown) + 1) // 2
    thin = {contender.name for contender in Flash.contenders if not contender.emphasized}
    drawn = {name: title for name, title in titles(rows).items() if name in set(cells["implementation"])}
    figure, panels = subplots(across, rows=down, height=1.0 + 1.6 * down)
    for place, (axes, (whole, d)) in enumerate(zip(panels, shown, strict=False)):
        here = select(cells, causal=not whole, d=d)
        for number, (name, title) in enumerate(drawn.items()):
            look = look_of_line(number) | {"label": title, "linewidth": THIN if name in thin else THICK}
            for length in sorted(set(here["sequence"])):
                own = select(here, implementation=name, sequence=length).sort_values("heads_in_all")
                flops = [flash_flops(BOTH, 1, n, length, d, causal=not whole) for n in own["heads_in_all"]]
                places = [shapes.index((length, n)) for n in own["heads_in_all"]]
                if len(own):
                    axes.plot(places, numpy.divide(flops, 1e9 * own["median"]), **look)
        axes.set_title(f"d = {d}, {'no mask' if whole else 'causal'}")
        labels = [f"{n} × {length}" for length, n in shapes] if place + across >= len(shown) else [""] * len(shapes)
        axes.set_xticks(range(len(shapes)), labels, rotation=60, fontsize=7)
    for axes in panels[len(shown) :]:
        axes.axis("off")
    for axes in panels[::across]:
        axes.set_ylabel("TFLOP/s")
    panels[0].set_ylim(bottom=0)
    legend(panels, ncols=4, handlelength=3)
    return figure
