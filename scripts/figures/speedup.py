"""Speed-up of bf16 over fp32, and of torch.compile over eager, by model size."""

from typing import Any

from pandas import DataFrame

from scripts.data import (
    MODES,
    load_at_one_setting,
    ratio,
    reference_context,
    select,
    size_order,
    statistic,
    steady_warmup,
)
from scripts.style import grouped_bars, save, save_note, subplots


def speedups(
    data: DataFrame, baseline: dict[str, Any], contender: dict[str, Any], sizes: list[str]
) -> dict[str, list[float | None]]:
    """Median step time of the baseline over the contender's, a list over sizes for each kind of step."""
    return {
        title: [
            ratio(
                statistic(data, "median", metric="step", mode=mode, size=size, **baseline),
                statistic(data, "median", metric="step", mode=mode, size=size, **contender),
            )
            for size in sizes
        ]
        for mode, title in MODES.items()
    }


def draw(table: str, output: str, comparison: str) -> None:
    """Grouped bars; `comparison` is `precision` (one panel) or `compile` (one panel per precision)."""
    data = load_at_one_setting("end_to_end", table)
    data = select(data, attention="plain", context=reference_context(data))
    data = data[data["warmup"] == steady_warmup(data)]
    panels: dict[str, tuple[DataFrame, dict[str, Any], dict[str, Any]]]
    if comparison == "precision":
        eager = select(data, compiled=False)
        panels = {"bf16 autocast over fp32": (eager, {"precision": "fp32"}, {"precision": "bf16"})}
    else:
        panels = {
            f"compiled over eager, {name}": (select(data, precision=name), {"compiled": False}, {"compiled": True})
            for name in ["fp32", "bf16"]
        }
    figure, axes_row = subplots(rows=len(panels), height=0.8 + 1.4 * len(panels))
    drawn = False
    for axes, (title, (rows, baseline, contender)) in zip(axes_row, panels.items(), strict=True):
        sizes = size_order(select(rows, **contender))
        series = speedups(rows, baseline, contender, sizes)
        if not any(value for values in series.values() for value in values):
            continue
        drawn = True
        labels = [rows[rows["size"] == size]["label"].iloc[0] for size in sizes]
        grouped_bars(axes, labels, series)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_title(title)
        axes.set_ylabel("speed-up")
        axes.margins(y=0.15)
    if not drawn:
        save_note("nothing to compare was measured", output)
        return
    handles, names = axes_row[0].get_legend_handles_labels()
    figure.legend(handles, names, ncols=3, loc="outside lower center")
    save(figure, output)
