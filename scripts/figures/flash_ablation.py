"""What each design decision of the attention kernels is worth, as bars."""

import textwrap

from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.data import load, select
from scripts.views.flash_ablation import DECISIONS, gain

PHASES = ("forward", "backward")
SHORT = {name: textwrap.fill(title, 17) for name, title in DECISIONS.items()}


def draw(table: str, output: str) -> None:
    """A panel per precision and head dimension, a group of bars per decision; the axis is logarithmic."""
    rows = load("flash_ablation", table)
    panels = {}
    for precision in ("bf16", "fp32"):
        own = select(rows, precision=precision)
        for d in sorted(set(own["d"])):
            cells = select(own, d=d)
            series = {
                phase: {name: gain(cells, phase, name) for name in DECISIONS} for phase in ("forward", "backward")
            }
            tried = [name for name in DECISIONS if name != "nothing" and any(own[name] for own in series.values())]
            if tried:
                panels[f"{precision}, d = {d}"] = (tried, series)
    if not panels:
        save_note("not measured", output)
        return
    figure, drawn = subplots(rows=len(panels), height=0.6 + 1.75 * len(panels), sharey=False)
    for axes, (title, (tried, series)) in zip(drawn, panels.items(), strict=True):
        bars = {phase: [gains[name] for name in tried] for phase, gains in series.items()}
        grouped_bars(axes, [SHORT[name] for name in tried], bars)
        axes.set_yscale("log", base=2)
        axes.axhline(1, color="black", linewidth=0.8)
        most = max(value for values in bars.values() for value in values if value)
        axes.set_ylim(0.7, 1.6 * most)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title)
        axes.set_ylabel("time over ours")
        axes.tick_params(axis="x", labelsize=7)
    legend(drawn, ncols=2)
    save(figure, output)
