"""Training-step time against context length, one line per size."""

from scripts.data import load_at_one_setting, select, size_order, steady_warmup
from scripts.style import COLOURS, MARKERS, log_scale, save, save_note, subplots


def draw(table: str, output: str) -> None:
    """Forward and backward, log-log, fp32 next to bf16; the line of a size that ran out of memory ends early."""
    data = load_at_one_setting("end_to_end", table)
    data = select(data, compiled=False, attention="plain", metric="step", mode="forward_backward")
    data = data[data["warmup"] == steady_warmup(data)]
    if not len(data):
        save_note("no forward and backward pass was measured", output)
        return
    figure, panels = subplots(2, height=2.9)
    sizes = size_order(data)
    for axes, precision in zip(panels, ["fp32", "bf16"], strict=True):
        for index, size in enumerate(sizes):
            rows = select(data, precision=precision, size=size).sort_values("context")
            if not len(rows):
                continue
            axes.errorbar(
                rows["context"],
                rows["median"],
                yerr=[rows["median"] - rows["p20"], rows["p80"] - rows["median"]],
                label=rows["label"].iloc[0],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
            )
        axes.set_xscale("log", base=2)
        log_scale(axes.yaxis)
        contexts = sorted(data["context"].unique())
        axes.set_xticks(contexts, [str(context) for context in contexts])
        axes.set_title(precision)
        axes.set_xlabel("context / tokens")
    panels[0].set_ylabel("forward + backward / ms")
    panels[1].legend(fontsize=7, title="size", title_fontsize=7)
    save(figure, output)
