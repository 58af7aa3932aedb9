"""What bf16 gains at each context length: in the time of a step, and in the time that the device works."""

from scripts.answers.benchmarking_mixed_precision import BOTH, pairs
from scripts.rendering.style import COLOURS, MARKERS, legend, save, save_note, subplots
from scripts.views.data import load_at_one_setting, select
from scripts.views.steps import most_complete, steady, step_table

PANELS = {"time of the step": BOTH, "time that the device works": f"{BOTH}, busy"}


def draw(table: str, output: str) -> None:
    """Speed-up of forward and backward against context, one line per size; the second panel only for GPUs."""
    steps = steady(step_table(load_at_one_setting("end_to_end", table)))
    both = pairs(most_complete(select(steps, compiled=False, attention="plain")))
    panels = {title: column for title, column in PANELS.items() if any(pair.gain(column) for pair in both)}
    if not panels:
        save_note("no step was measured in both precisions", output)
        return
    figure, axes_row = subplots(len(panels), height=2.9)
    labels = list(dict.fromkeys(pair.label for pair in both))
    contexts = sorted({pair.context for pair in both})
    for axes, (title, column) in zip(axes_row, panels.items(), strict=True):
        for index, label in enumerate(labels):
            points = [(pair.context, gain) for pair in both if pair.label == label and (gain := pair.gain(column))]
            axes.plot(*zip(*points, strict=True), label=label, color=COLOURS[index], marker=MARKERS[index])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(contexts, [str(context) for context in contexts])
        axes.set_title(title)
        axes.set_xlabel("context / tokens")
    axes_row[0].set_ylabel("fp32 over bf16")
    axes_row[0].set_ylim(bottom=0)
    legend(axes_row, ncols=len(labels))
    save(figure, output)
