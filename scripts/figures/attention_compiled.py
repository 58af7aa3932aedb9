"""Plain attention, compiled against eager: its time and its peak, eager over compiled."""

from scripts.rendering.style import NotDrawn, grouped_bars, legend, save, subplots
from scripts.views.compiled_attention import paired
from scripts.views.data import load_at_one_setting, select


def draw(table: str, output: str) -> None:
    """Grouped bars by length, one per head dimension; a panel of peaks only where the device counts its memory."""
    pairs = paired(load_at_one_setting("attention", table))
    pairs["lower"] = pairs["eager_peak"] / pairs["compiled_peak"]
    panels = {
        column: title
        for column, title in (("gain", "time of both passes"), ("lower", "peak memory"))
        if pairs[column].notna().any()
    }
    if not panels:
        raise NotDrawn("nothing to compare was measured")
    lengths = sorted(pairs["sequence"].unique())
    figure, rows = subplots(rows=len(panels), height=0.9 + 1.4 * len(panels), sharey=False)
    for axes, (column, title) in zip(rows, panels.items(), strict=True):
        series = {}
        for d in sorted(pairs["d"].unique()):
            cells = select(pairs, d=d).set_index("sequence")[column].dropna()
            series[f"d = {d}"] = [float(cells[length]) if length in cells else None for length in lengths]
        grouped_bars(axes, [str(length) for length in lengths], series)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=title, ylabel="eager over compiled")
        axes.margins(y=0.15)
    rows[-1].set_xlabel("sequence / tokens")
    legend(rows, ncols=5)
    save(figure, output)
