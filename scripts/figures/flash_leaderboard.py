"""The leaderboard's cell as bars."""

from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.attention_calls import titles
from scripts.views.data import load, select, statistic


def draw(table: str, output: str) -> None:
    """A group of bars per implementation, a bar per head dimension."""
    rows = select(load("flash", table), metric="forward_backward", compiled_call=True)
    if not len(rows):
        save_note("not measured", output)
        return
    names = titles(rows)
    series = {
        f"d = {d}": [statistic(rows, "median", implementation=name, d=d) for name in names]
        for d in sorted(set(rows["d"]))
    }
    figure, (axes,) = subplots(height=2.3)
    grouped_bars(axes, list(names.values()), series)
    axes.set_ylabel("forward + backward / ms")
    axes.margins(y=0.15)
    legend([axes], ncols=2)
    save(figure, output)
