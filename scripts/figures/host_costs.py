"""Costs of the host: time per launch against work per launch, and one program in several processes."""

from matplotlib.axes import Axes
from pandas import DataFrame

from scripts.rendering.style import COLOURS, MARKERS, NotDrawn, legend, log_scale, save, subplots
from scripts.views.data import load_at_one_setting
from scripts.views.host import per_launch, same_step

LOOKS = {False: ("eager", COLOURS[0], MARKERS[0]), True: ("compiled", COLOURS[5], MARKERS[1])}


def draw(table: str, second_table: str, output: str) -> None:
    """Left: every end_to_end step. Right: the steps that data_parallel also timed."""
    end_to_end = load_at_one_setting("end_to_end", table)
    steps = per_launch(end_to_end)
    if not len(steps):
        raise NotDrawn("not measured: kernel launches need a GPU")
    same = same_step(end_to_end, load_at_one_setting("data_parallel", second_table))
    programs = [rows for _, rows in same.groupby("precision", sort=False) if len(rows) > 1]
    figure, (left, *others) = subplots(1 + len(programs), height=2.7, sharey=False)
    draw_launches(left, steps)
    for axes, rows in zip(others, programs, strict=True):
        draw_processes(axes, rows)
    legend([left], ncols=3)
    save(figure, output)


def draw_launches(axes: Axes, steps: DataFrame) -> None:
    """A mark per cell, and the line on which the device never waits."""
    for compiled, (name, colour, marker) in LOOKS.items():
        rows = steps[steps["compiled"] == compiled]
        if len(rows):
            axes.plot(rows["device"], rows["host"], marker, color=colour, label=name, markersize=3.5, alpha=0.8)
    ends = [steps["device"].min(), steps["host"].max()]
    axes.plot(ends, ends, "--", color="black", linewidth=0.8, label="the device never waits")
    log_scale(axes.xaxis)
    log_scale(axes.yaxis)
    axes.set(title="time per launch", xlabel="device busy per launch / µs", ylabel="step per launch / µs")


def draw_processes(axes: Axes, rows: DataFrame) -> None:
    """Each timed step in its process, and its device-busy time."""
    for place, (_, row) in enumerate(rows.iterrows()):
        count = len(row["samples"])
        places = [place + 0.5 * (number / max(count - 1, 1) - 0.5) for number in range(count)]
        axes.plot(places, row["samples"], "o", color=COLOURS[0], markersize=3)
        axes.hlines(row["median"], place - 0.3, place + 0.3, color="black", linewidth=1.2)
    first = rows.iloc[0]
    axes.axhline(first["busy"], linestyle="--", color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), rows["where"], fontsize="x-small")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(bottom=0)
    axes.set(
        title=f"{first['label']}, {first['precision']}{', host-bound' if first['host_bound'] else ''}",
        xlabel="run",
        ylabel="step / ms",
    )
    axes.grid(axis="x", visible=False)
