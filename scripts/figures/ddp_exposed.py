"""What each wrapper exposes of its communication, by precision."""

from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.data import load_at_one_setting, select
from scripts.views.data_parallel import KINDS, contenders, fastest, setting_name


def draw(table: str, output: str) -> None:
    """Grouped bars, one panel per precision, eager or compiled; a wrapper is shown at its fastest setting."""
    rows = contenders(load_at_one_setting("data_parallel", table))
    rows = rows[rows["exposed"].notna()]
    if not len(rows):
        save_note("not measured", output)
        return
    rows = rows.assign(setting=[setting_name(row) for _, row in rows.iterrows()])
    settings = list(dict.fromkeys(rows["setting"]))
    numbers = sorted(set(rows["processes"]))
    kinds = {name: kind for name, kind in KINDS.items() if fastest(rows, *kind) is not None}
    figure, panels = subplots(rows=len(settings), height=0.7 + 1.4 * len(settings))
    for axes, setting in zip(panels, settings, strict=True):
        there = select(rows, setting=setting)
        series = {}
        for processes in numbers:
            found = [fastest(select(there, processes=processes), *kind) for kind in kinds.values()]
            name = f"{processes} {'GPUs' if rows['gpu'].iloc[0] else 'processes'}"
            series[name] = [None if row is None else float(row["exposed"]) for row in found]
        grouped_bars(axes, list(kinds), series, digits=1)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title(setting)
        axes.set_ylabel("exposed / ms")
        axes.margins(y=0.15)
        axes.tick_params(labelbottom=axes is panels[-1])
    if len(numbers) > 1:
        legend(panels, ncols=3)
    save(figure, output)
