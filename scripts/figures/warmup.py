"""How slow the first timed step is after only a few warm-up steps."""

from scripts.data import load_at_one_setting, ratio, select, size_order, statistic
from scripts.style import grouped_bars, log_scale, save, save_note, subplots


def draw(table: str, output: str) -> None:
    """First timed step over the median step of the same run, by warm-up steps, one group per size; log scale."""
    data = load_at_one_setting("end_to_end", table)
    data = select(data, compiled=False, attention="plain", mode="forward_backward", precision="fp32")
    cold = data[data["warmup"] == data["warmup"].min()]
    if not len(cold) or data["warmup"].nunique() < 2:
        save_note("warm-up was not varied", output)
        return
    data = data[data["context"] == cold["context"].iloc[0]]
    sizes = size_order(cold)
    series = {}
    for warmup in sorted(data["warmup"].unique()):
        rows = select(data, warmup=warmup)
        series[f"{warmup} warm-up steps"] = [
            ratio(
                statistic(rows, "median", size=size, metric="first_step"),
                statistic(rows, "median", size=size, metric="step"),
            )
            for size in sizes
        ]
    figure, (axes,) = subplots(height=2.5)
    labels = [cold[cold["size"] == size]["label"].iloc[0] for size in sizes]
    grouped_bars(axes, labels, series)
    log_scale(axes.yaxis)
    axes.set_ylabel("first timed step / median step")
    axes.legend(ncols=len(series), fontsize=7, loc="upper right")
    axes.margins(y=0.25)
    save(figure, output)
