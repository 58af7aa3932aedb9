"""The figure of a card: clock, power and temperature of each GPU while it was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cs336_systems.measure.gpu_state import INTERVAL_S
from cs336_systems.record.measurement import parse_samples
from scripts.rendering.style import legend, look_of_line, save, subplots

PANELS = (("sm_clock", "SM clock, MHz"), ("power", "power, W"), ("temperature", "temperature, °C"))
MOST_POINTS = 400


def draw(rows: Sequence[Any], path: Path) -> bool:
    """Draw the samples of each GPU, one after another; return False, and draw nothing, if the driver reports none."""
    sampled = [row for row in rows if row.work and row.n and row.metric in dict(PANELS)]
    if not sampled:
        return False
    figure, panels = subplots(len(PANELS), height=1.9, sharey=False)
    for (metric, title), axes in zip(PANELS, panels, strict=True):
        for index, gpu in enumerate(sorted({row.device for row in sampled}, key=lambda gpu: (len(gpu), gpu))):
            own = [row for row in sampled if (row.metric, row.device) == (metric, gpu)]
            samples = [sample for row in own for sample in (parse_samples(row.samples) if row.samples else [row.mean])]
            step = max(1, len(samples) // MOST_POINTS)
            look = {**look_of_line(index), "marker": "", "linewidth": 0.8}
            seconds = [number * INTERVAL_S for number in range(0, len(samples), step)]
            axes.plot(seconds, samples[::step], label=f"GPU {gpu}", **look)
        axes.set(title=title, xlabel="measured time, s", ylim=(0, None))
    legend(panels, ncols=8)
    save(figure, path)
    return True
