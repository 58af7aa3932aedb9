"""The cost of a process's first timed step beyond the others, by number of warm-up steps."""

import math

from scripts.rendering.style import NotDrawn, grouped_bars, legend, save, subplots
from scripts.views.data import load_at_one_setting, select, size_order
from scripts.views.steps import step_table


def draw(table: str, output: str) -> None:
    """First timed step minus the median step of the same run, ms, by warm-up steps, one group per size."""
    steps = step_table(load_at_one_setting("end_to_end", table))
    cold = select(steps, cold_start=True, compiled=False, attention="plain")
    if cold["warmup"].nunique() < 2:
        raise NotDrawn("warm-up was not varied")
    sizes = size_order(cold)
    series: dict[str, list[float | None]] = {}
    for warmup in sorted(cold["warmup"].unique()):
        rows = select(cold, warmup=warmup).set_index("size")
        extra = (rows["first_step"] - rows["step"]).reindex(sizes)
        series[f"w = {warmup}"] = [None if math.isnan(value) else value for value in extra]
    figure, (axes,) = subplots(height=2.5)
    grouped_bars(axes, [cold[cold["size"] == size]["label"].iloc[0] for size in sizes], series, digits=1)
    axes.set_ylabel("first timed − median step / ms")
    axes.margins(y=0.15)
    legend([axes], ncols=len(series))
    save(figure, output)
