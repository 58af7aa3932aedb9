"""What the memory at the peak is for, by context and precision."""

from scripts.data import load_at_one_setting, select
from scripts.memory import LOOKS, MODES, SHOWN, contexts, parts, peak_gib, profiled
from scripts.style import save, save_note, subplots

PRECISIONS = ["fp32", "bf16"]


def draw(table: str, output: str) -> None:
    """Stacked bars, fp32 next to bf16 at each context, one panel per kind of step."""
    rows = profiled(load_at_one_setting("memory_profile", table))
    if not len(select(rows, metric="peak_allocated")):
        save_note("no memory was followed on this machine", output)
        return
    figure, panels = subplots(len(MODES), height=3.2)
    lengths = contexts(rows)
    for axes, (mode, title) in zip(panels, MODES.items(), strict=True):
        for group, context in enumerate(lengths):
            for side, precision in enumerate(PRECISIONS):
                position = group + 0.4 * (side - 0.5)
                cell = select(rows, mode=mode, context=context, precision=precision)
                peak = peak_gib(cell)
                if peak is None:
                    axes.annotate("n/m", (position, 0), (0, 2), textcoords="offset points", ha="center", fontsize=6)
                    continue
                bottom = 0.0
                for name, size in parts(cell, "at_peak").items():
                    axes.bar(position, size, 0.37, bottom=bottom, edgecolor="white", linewidth=0.3, **LOOKS[name])
                    bottom += size
                axes.annotate(
                    precision,
                    (position, peak),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    rotation=90,
                    fontsize=6,
                )
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
        axes.set_title(title)
        axes.set_xlabel("context / tokens")
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.12)
    panels[0].set_ylabel("memory at the peak / GiB")
    handles = [panels[0].bar(0, 0, label=name, edgecolor="white", **LOOKS[name]) for name in SHOWN]
    figure.legend(handles, SHOWN, ncols=4, loc="outside lower center", fontsize=8)
    save(figure, output)
