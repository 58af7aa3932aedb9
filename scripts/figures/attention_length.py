"""Time and peak memory of plain attention against sequence length, one line per head dimension."""

from cs336_systems.accounting.attention import plain_peak_bytes
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.attention import Attention
from scripts.rendering.style import NotDrawn, legend, log_scale, look_of_line, powers, save, subplots
from scripts.views.cells import side_by_side
from scripts.views.data import load_at_one_setting, select


def draw(table: str, output: str) -> None:
    """Log-log; the second panel only where the device counts its memory."""
    data = select(load_at_one_setting("attention", table), compiled=False)
    cells = side_by_side(data, Attention).reindex(columns=["forward", "backward", "peak_memory"]).reset_index()
    cells["time"] = cells["forward"] + cells["backward"]
    shown = {
        column: label
        for column, label in (("time", "forward + backward / ms"), ("peak_memory", "peak memory / MiB"))
        if cells[column].notna().any()
    }
    if not shown:
        raise NotDrawn("not measured")
    figure, panels = subplots(len(shown), height=3.0, sharey=False)
    for axes, (column, label) in zip(panels, shown.items(), strict=True):
        for index, d in enumerate(sorted(cells["d"].unique())):
            rows = select(cells, d=d).dropna(subset=[column]).sort_values("sequence")
            axes.plot(rows["sequence"], rows[column], label=f"d = {d}", **look_of_line(index))
        if column == "peak_memory" and set(data["precision"]) == {"fp32"}:
            widest = select(cells, d=cells["d"].max()).sort_values("sequence")
            form = [
                plain_peak_bytes(*cell) / MIB
                for cell in widest[["batch_size", "sequence", "d"]].itertuples(index=False, name=None)
            ]
            axes.plot(widest["sequence"], form, color="black", linestyle=(0, (1, 1)), linewidth=1, label="closed form")
        powers(axes.xaxis, 2)
        log_scale(axes.yaxis)
        axes.set(xlabel="sequence / tokens", ylabel=label)
    legend(panels, ncols=5, handlelength=3)
    save(figure, output)
