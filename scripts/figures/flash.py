"""Attention implementations against sequence length: latency, throughput or peak memory."""

from cs336_systems.accounting.attention import flash_flops
from scripts.rendering.attention_looks import looks
from scripts.rendering.style import legend, log_scale, powers, save, save_note, subplots
from scripts.views.data import load, select

QUANTITIES = {
    "latency": ("forward_backward", "forward + backward / ms"),
    "throughput": ("forward_backward", "forward + backward / TFLOP/s"),
    "memory": ("peak_memory", "peak memory / MiB"),
}

SHOWN = (64, 128)
"""The head dimensions that models use."""


def draw(table: str, output: str, quantity: str) -> None:
    """Two panels, head dimensions 64 and 128; bf16, causal, batch 1, one head."""
    metric, label = QUANTITIES[quantity]
    one_head = {"batch_size": 1, "heads": 1, "causal": True, "compiled_call": False}
    rows = load("flash", table)
    data = select(rows, metric=metric, precision="bf16", **one_head)
    data = data[data["d"].isin(SHOWN)]
    if not len(data):
        save_note("not measured", output)
        return
    figure, panels = subplots(2, height=3.3)
    for axes, d in zip(panels, SHOWN, strict=True):
        for name, look in looks(rows).items():
            own = select(data, d=d, implementation=name).sort_values("sequence")
            if not len(own):
                continue
            values = list(own["median"])
            if quantity == "throughput":
                flops = [flash_flops(metric, 1, 1, sequence, d, causal=True) for sequence in own["sequence"]]
                values = [operations / value / 1e9 for operations, value in zip(flops, values, strict=True)]
            axes.plot(own["sequence"], values, **look)
        powers(axes.xaxis, 2)
        if quantity != "throughput":
            log_scale(axes.yaxis)
        axes.set_title(f"d = {d}")
        axes.set_xlabel("sequence / tokens")
    if quantity == "throughput":
        panels[0].set_ylim(bottom=0)  # shared, so once all is drawn
    panels[0].set_ylabel(label)
    legend(panels, ncols=3, fontsize=7.5, handlelength=3)
    save(figure, output)
