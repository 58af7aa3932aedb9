"""The training step against context length, one line per size, and how long the device works in it."""

from scripts.rendering.style import NotDrawn, legend, log_scale, look_of_line, save, subplots
from scripts.views.data import load_at_one_setting, select, size_order
from scripts.views.steps import steady, step_table


def draw(table: str, output: str) -> None:
    """Medians, log-log, fp32 next to bf16; dotted, the device's part. A size that does not fit has a shorter line."""
    steps = steady(step_table(load_at_one_setting("end_to_end", table)))
    steps = select(steps, compiled=False, attention="plain", mode="train_step")
    if not len(steps):
        raise NotDrawn("no training step was measured")
    figure, panels = subplots(2, height=3.1)
    contexts = sorted(steps["context"].unique())
    for axes, precision in zip(panels, ["fp32", "bf16"], strict=True):
        for index, size in enumerate(size_order(steps)):
            rows = select(steps, precision=precision, size=size)
            look = look_of_line(index) | {"linestyle": "-"}
            axes.plot(rows["context"], rows["step"], label=rows["label"].iloc[0] if len(rows) else None, **look)
            axes.plot(rows["context"], rows["device_busy"], **look | {"linestyle": ":", "linewidth": 1, "mfc": "none"})
        axes.set_xscale("log", base=2)
        log_scale(axes.yaxis)
        axes.set_xticks(contexts, [str(context) for context in contexts])
        axes.set(title=precision, xlabel="context / tokens")
    panels[0].set_ylabel("training step / ms")
    if steps["device_busy"].notna().any():
        panels[-1].plot([], [], linestyle=":", linewidth=1, color="black", label="the device works")
    legend(panels, ncols=len(size_order(steps)) + 1)
    save(figure, output)
