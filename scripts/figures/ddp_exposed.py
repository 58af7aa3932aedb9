"""What each wrapper exposes of its communication, by precision."""

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.comparison import contenders, fastest, ranks_of, setting_name
from scripts.views.data import load_at_one_setting, select
from scripts.views.data_parallel import kinds


def draw(table: str, output: str) -> None:
    """Grouped bars, one panel per precision, eager or compiled; a wrapper is shown at its fastest setting."""
    rows = contenders(DataParallelTraining, load_at_one_setting("data_parallel", table))
    rows = rows[rows["exposed"].notna()]
    if not len(rows):
        save_note("not measured", output)
        return
    rows = rows.assign(setting=[setting_name(row) for _, row in rows.iterrows()])
    settings = list(dict.fromkeys(rows["setting"]))
    numbers = sorted(set(rows["processes"]))
    shown = {name: names for name, names in kinds(rows).items() if fastest(rows, names) is not None}
    figure, panels = subplots(rows=len(settings), height=0.7 + 1.4 * len(settings))
    for axes, setting in zip(panels, settings, strict=True):
        there = select(rows, setting=setting)
        series = {}
        for processes in numbers:
            found = [fastest(select(there, processes=processes), names) for names in shown.values()]
            first = select(rows, processes=processes).iloc[0]
            series[ranks_of(first)] = [None if row is None else float(row["exposed"]) for row in found]
        grouped_bars(axes, list(shown), series, digits=1)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title(f"{setting}{', host-bound' if there['host_bound'].any() else ''}")
        axes.set_ylabel("exposed / ms")
        axes.margins(y=0.15)
        axes.tick_params(labelbottom=axes is panels[-1])
    if len(numbers) > 1:
        legend(panels, ncols=3)
    save(figure, output)
