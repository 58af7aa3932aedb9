"""Where a training step's time goes, one bar per size and precision."""

from scripts.rendering.markup import significant
from scripts.rendering.style import NotDrawn, legend, look_of_bar, save, stacked_bar, subplots
from scripts.views.data import (
    PHASES,
    load_at_one_setting,
    reference_context,
    select,
    size_order,
    statistic,
    steady_warmup,
)


def draw(table: str, output: str) -> None:
    """Stacked shares of forward, backward and optimizer; the step's total above each bar."""
    data = load_at_one_setting("end_to_end", table)
    context = reference_context(data)
    data = select(data, compiled=False, attention="plain", mode="train_step", context=context)
    data = data[data["warmup"] == steady_warmup(data)]
    if not len(select(data, metric="step")):
        raise NotDrawn("no training step was measured")
    looks = {phase: look_of_bar(phase, index) for index, phase in enumerate(PHASES)}
    figure, panels = subplots(2, height=2.7)
    for axes, precision in zip(panels, ["fp32", "bf16"], strict=True):
        rows = select(data, precision=precision)
        sizes = size_order(rows)
        for position, size in enumerate(sizes):
            total = statistic(rows, "median", size=size, metric="step")
            if total is None:
                axes.annotate("n/m", (position, 3), ha="center", fontsize=7)
                continue
            times = {phase: statistic(rows, "median", size=size, metric=phase) or 0.0 for phase in PHASES}
            shares = {phase: 100 * time / total for phase, time in times.items()}
            stacked_bar(axes, position, 0.7, shares, looks, text=str(significant(total)))
        labels = [rows[rows["size"] == size]["label"].iloc[0] for size in sizes]
        axes.set_xticks(range(len(sizes)), labels)
        axes.set(title=f"{precision}, context {context}", xlabel="model size (above: whole step / ms)")
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("share of the step / %")
    legend(panels, ncols=3)
    save(figure, output)
