"""When each unit's weights are gathered in a forward pass, and when they are needed."""

from cs336_systems.experiments.fsdp import FullyShardedTraining
from scripts.rendering.style import COLOURS, legend, save, save_note, subplots
from scripts.views.comparison import contenders, marked, traced_cell
from scripts.views.data import load_at_one_setting
from scripts.views.fsdp import forward_pass


def draw(table: str, output: str) -> None:
    """One panel per contender: a bar for each all-gather, and a line through the times at which units begin."""
    measured = load_at_one_setting("fsdp", table)
    cell = traced_cell(contenders(FullyShardedTraining, measured))
    shown = [(row, found) for _, row in cell.iterrows() if len(found := forward_pass(measured, row))]
    if not shown:
        save_note("no forward pass with all-gathers was profiled on this machine", output)
        return
    figure, panels = subplots(rows=len(shown), height=0.6 + 1.6 * len(shown), sharey=False)
    for axes, (row, found) in zip(panels, shown, strict=True):
        lengths = found["gather_ends"] - found["gather_begins"]
        axes.barh(found.index, lengths, left=found["gather_begins"], height=1.0, color=COLOURS[1], label="all-gather")
        axes.plot(found["needed"], found.index, color=COLOURS[0], label="device ready for the unit")
        axes.plot(found["begins"], found.index, color="black", linestyle=":", label="unit begins")
        axes.set_title(row["title"], loc="left", fontsize=8.5)
        axes.set_title(f"{row['forward_length']:.1f} ms", loc="right", fontsize=8.5)
        axes.set_xlim(0, max(each["forward_length"] for each, _ in shown))
        axes.set_ylabel("unit")
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("ms since the forward pass began")
    figure.suptitle(marked(cell.iloc[0]), fontsize="medium")
    legend(panels, ncols=3)
    save(figure, output)
