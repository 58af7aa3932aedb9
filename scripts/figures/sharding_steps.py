"""Training steps with sharded optimizers, and the optimizer's part of them."""

from textwrap import fill

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.comparison import contenders, ranks_of, titles
from scripts.views.data import load_at_one_setting, select


def draw(table: str, output: str) -> None:
    """Grouped bars by number of processes: the step on the left, the optimizer's part on the right, by precision."""
    rows = contenders(OptimizerSharding, load_at_one_setting("optimizer_sharding", table))
    if not len(rows):
        save_note("not measured", output)
        return
    precisions = list(dict.fromkeys(rows["precision"]))
    numbers = sorted(set(rows["processes"]))
    called = titles(OptimizerSharding, rows)
    shown = {name: fill(title, 11) for name, title in called.items() if name in set(rows["contender"])}
    figure, panels = subplots(rows=2 * len(precisions), height=0.7 + 1.5 * 2 * len(precisions), sharey=False)
    pairs = [(precision, metric) for precision in precisions for metric in ("median", "optimizer")]
    for axes, (precision, metric) in zip(panels, pairs, strict=True):
        series = {}
        for processes in numbers:
            cell = select(rows, precision=precision, processes=processes).set_index("contender")[metric]
            first = select(rows, processes=processes).iloc[0]
            series[ranks_of(first)] = [float(cell[contender]) if contender in cell else None for contender in shown]
        grouped_bars(axes, list(shown.values()), series, digits=1)
        waits = ", host-bound" if select(rows, precision=precision)["host_bound"].any() else ""
        axes.set_title(
            f"{precision}{waits}, {'whole step' if metric == 'median' else 'optimizer with its communication'}"
        )
        axes.set_ylabel("ms")
        axes.margins(y=0.15)
        axes.tick_params(labelbottom=axes is panels[-1], labelsize=8)
    if len(numbers) > 1:
        legend(panels, ncols=3)
    save(figure, output)
