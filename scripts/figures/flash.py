"""Throughput of attention implementations against sequence length, one head."""

import numpy
from matplotlib.figure import Figure
from pandas import DataFrame

from cs336_systems.accounting.attention import flash_flops
from scripts.rendering.style import NotDrawn, legend, powers, subplots
from scripts.views.attention_calls import ONE_HEAD
from scripts.views.attention_looks import looks
from scripts.views.attention_times import call_table
from scripts.views.data import select

BOTH = "forward_backward"
SHOWN = (64, 128)
"""The head dimensions that models use."""
LONG = 1024
"""Shorter sequences compute almost nothing."""


def draw(rows: DataFrame) -> Figure:
    """Two panels, head dimensions 64 and 128, in bf16; host-bound times are omitted."""
    cells = select(call_table(rows), precision="bf16", **ONE_HEAD)
    cells = cells[cells["d"].isin(SHOWN) & ~cells["host_bound"]]
    long = cells[cells["sequence"] >= LONG]
    cells = long if len(long) else cells
    if not len(cells):
        raise NotDrawn("not measured")
    figure, panels = subplots(2, height=3.3)
    for axes, d in zip(panels, SHOWN, strict=True):
        for name, look in looks(rows).items():
            own = select(cells, d=d, implementation=name).sort_values("sequence")
            flops = [flash_flops(BOTH, 1, 1, length, d, causal=True) for length in own["sequence"]]
            if len(own):
                axes.plot(own["sequence"], numpy.divide(flops, 1e9 * own["median"]), **look)
        powers(axes.xaxis, 2)
        axes.set(title=f"d = {d}", xlabel="sequence / tokens")
    panels[0].set_ylim(bottom=0)  # shared, so after everything is drawn
    panels[0].set_ylabel("forward + backward / TFLOP/s")
    legend(panels, ncols=3, fontsize=7.5, handlelength=3)
    return figure
