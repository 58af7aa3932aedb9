"""The backward pass in compiled PyTorch against that in Triton kernels."""

from typing import Any

from scripts.rendering.style import COLOURS, LINES, MARKERS, legend, powers, save, save_note, subplots
from scripts.views.backward_ways import compared
from scripts.views.data import PRECISIONS, load, select
from scripts.views.flash_rivals import ONE_HEAD


def draw(table: str, output: str) -> None:
    """A panel per precision, a line per head dimension; hollow marks where the host sets the pace."""
    pairs = compared(select(load("flash", table), **ONE_HEAD))
    if not pairs:
        save_note("not measured", output)
        return
    shown = [precision for precision in PRECISIONS if any(pair["precision"] == precision for pair in pairs)]
    dimensions = sorted({pair["d"] for pair in pairs})
    figure, panels = subplots(len(shown), height=2.8)
    for axes, precision in zip(panels, shown, strict=True):
        for index, d in enumerate(dimensions):
            own = [pair for pair in pairs if pair["precision"] == precision and pair["d"] == d]
            lengths, gains = [pair["sequence"] for pair in own], [pair["gain"] for pair in own]
            axes.plot(lengths, gains, **look(index, d))
            for pair in own:
                if pair["host_bound"]:
                    axes.plot(pair["sequence"], pair["gain"], **(look(index, d) | {"mfc": "white", "linestyle": ""}))
        axes.axhline(1, color="black", linewidth=0.8)
        powers(axes.xaxis, 2)
        axes.set_title(precision)
        axes.set_xlabel("sequence / tokens")
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("compiled PyTorch over Triton")
    legend(panels, ncols=4, handlelength=3)
    save(figure, output)


def look(index: int, d: int) -> dict[str, Any]:
    """What the line of a head dimension is called, and how it is drawn."""
    return {
        "label": f"d = {d}",
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
    }
