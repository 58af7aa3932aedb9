"""Speed-up of bf16 over fp32, and of torch.compile over eager, by model size."""

from typing import Any

from pandas import DataFrame

from scripts.rendering.style import grouped_bars, legend, save, save_note, subplots
from scripts.views.data import load_at_one_setting, one, ratio, reference_context, select, size_order
from scripts.views.steps import PASSES, most_complete, steady, step_table


def speedups(
    steps: DataFrame, baseline: dict[str, Any], contender: dict[str, Any], sizes: list[str]
) -> dict[str, list[float | None]]:
    """Time of the baseline over the contender's, a list over sizes for each of PASSES."""
    found: dict[str, list[float | None]] = {title: [] for title in PASSES}
    for size in sizes:
        slow, fast = one(steps, size=size, **baseline), one(steps, size=size, **contender)
        for title, gains in found.items():
            gains.append(None if slow is None or fast is None else ratio(slow[title], fast[title]))
    return found


def draw(table: str, output: str, comparison: str) -> None:
    """Grouped bars; `comparison` is `precision` (one panel) or `compile` (one panel per precision)."""
    steps = most_complete(steady(step_table(load_at_one_setting("end_to_end", table))))
    steps = select(steps, attention="plain")
    panels: dict[str, tuple[DataFrame, dict[str, Any], dict[str, Any]]]
    if comparison == "precision":
        eager = select(steps, compiled=False)
        eager = select(eager, context=reference_context(select(eager, mode="train_step")))
        panels = {"bf16 autocast over fp32": (eager, {"precision": "fp32"}, {"precision": "bf16"})}
    else:
        steps = steps[steps["context"] == select(steps, compiled=True)["context"].max()]
        panels = {
            f"compiled over eager, {name}": (select(steps, precision=name), {"compiled": False}, {"compiled": True})
            for name in ["fp32", "bf16"]
        }
    drawn = {}
    for title, (rows, baseline, contender) in panels.items():
        sizes = size_order(select(rows, **contender))
        series = speedups(rows, baseline, contender, sizes)
        if any(value for values in series.values() for value in values):
            drawn[title] = ([rows[rows["size"] == size]["label"].iloc[0] for size in sizes], series)
    if not drawn:
        save_note("nothing to compare was measured", output)
        return
    figure, axes_row = subplots(rows=len(drawn), height=0.8 + 1.4 * len(drawn))
    for axes, (title, (labels, series)) in zip(axes_row, drawn.items(), strict=True):
        grouped_bars(axes, labels, series)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_title(title)
        axes.set_ylabel("speed-up")
        axes.margins(y=0.15)
    legend(axes_row, ncols=3)
    save(figure, output)
