"""What ranks have in memory when they train with sharded optimizers, measured beside the closed form."""

from matplotlib.axes import Axes
from pandas import DataFrame, Series, notna

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.rendering.style import legend, look, save, save_note, subplots
from scripts.views.comparison import ranks_of
from scripts.views.comparison import titles as titles_of
from scripts.views.data import PRECISIONS, load_at_one_setting, select
from scripts.views.optimizer_sharding import (
    AFTER_UPDATE,
    BEFORE_UPDATE,
    HELD,
    INITIALIZED,
    REST,
    memory,
    memory_unit_of,
    peaks,
    predicted,
)

TITLES = {
    INITIALIZED: "initialized",
    BEFORE_UPDATE: "before the update",
    AFTER_UPDATE: "after it",
}
PEAK = "peak of a step"
LOOKS = {
    "parameters": look(HELD["parameters"], 0, ""),
    "gradients": look(HELD["gradients"], 1, "///"),
    "optimizer_state": look(HELD["optimizer_state"], 2, "..."),
    REST: look("the rest; at the peak, gradients too", 7, ""),
}
HEIGHT = 0.38
"""Of a bar; two of them share a row of height 1."""


def draw(table: str, output: str) -> None:
    """Horizontal stacked bars, the closed form below the measured one; panels by moment and number of processes."""
    rows = memory(load_at_one_setting("optimizer_sharding", table))
    if not len(rows):
        save_note("not measured", output)
        return
    rows = select(rows, precision=max(rows["precision"], key=PRECISIONS.index))
    unit, mib = memory_unit_of(rows)
    called = titles_of(OptimizerSharding, rows)
    rows = rows.assign(position=rows["contender"].map(list(called).index))
    at_peak = peaks(rows)
    at_peak = at_peak[at_peak["peak"].notna()]
    titles = [*TITLES.values(), *([PEAK] if len(at_peak) else [])]
    numbers = sorted(set(rows["processes"]))
    most = max([*rows["total"], *at_peak["peak"], *at_peak["predicted_peak"].dropna()]) / mib
    figure, panels = subplots(len(titles), rows=len(numbers), height=0.9 + 2.3 * len(numbers), sharey=True)
    for index, axes in enumerate(panels):
        processes, title = numbers[index // len(titles)], titles[index % len(titles)]
        if title == PEAK:
            draw_peaks(axes, select(at_peak, processes=processes), mib)
        else:
            moment = list(TITLES)[titles.index(title)]
            draw_moment(axes, select(rows, processes=processes, moment=moment), mib)
        measured = set(select(rows, processes=processes)["contender"])
        for position, contender in enumerate(called):
            if contender not in measured:
                axes.annotate(" n/m", (0, position), va="center", fontsize=6)
        axes.set_ylim(len(called) - 0.5, -0.5)
        axes.set_xlim(0, 1.03 * most)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(called)), list(called.values()), fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        if processes == numbers[0]:
            axes.set_title(title, fontsize=8)
        if processes == numbers[-1]:
            axes.set_xlabel(unit)
        if title == titles[0]:
            axes.set_ylabel(ranks_of(select(rows, processes=processes).iloc[0]))
    legend(panels, ncols=4, fontsize=8)
    save(figure, output)


def draw_moment(axes: Axes, rows: DataFrame, mib: float) -> None:
    """What is held at a moment."""
    for _, row in rows.iterrows():
        measured = {part: row[part] / mib for part in LOOKS if notna(row[part])}
        stack(axes, row, measured, {part: count / mib for part, count in predicted(row).items()})


def draw_peaks(axes: Axes, rows: DataFrame, mib: float) -> None:
    """What is held at the peak; how much of the rest are gradients is not known there."""
    for _, row in rows.iterrows():
        held = {part: row[part] / mib for part in ("parameters", "optimizer_state")}
        form = {}
        if notna(row["predicted_peak"]):
            form = {part: predicted(row)[part] / mib for part in held}
            form[REST] = row["predicted_peak"] / mib - sum(form.values())
        stack(axes, row, held | {REST: row["peak"] / mib - sum(held.values())}, form)


def stack(axes: Axes, row: Series, measured: dict[str, float], form: dict[str, float]) -> None:
    """Two bars of a contender: measured, and the closed form in paler colours."""
    for parts, side, alpha in ((measured, -0.5, 1.0), (form, 0.5, 0.45)):
        left = 0.0
        for part, size in parts.items():
            axes.barh(row["position"] + side * HEIGHT * 1.1, size, HEIGHT, left=left, alpha=alpha, **LOOKS[part])
            left += size
