"""Throughput of attention implementations on shapes with many heads."""

from cs336_systems.accounting.attention import flash_flops
from scripts.rendering.attention_looks import looks
from scripts.rendering.style import legend, save, save_note, subplots
from scripts.views.data import load, select

BOTH = "forward_backward"


def draw(table: str, output: str) -> None:
    """A panel per mask and head dimension; along the axis the shapes, short sequences first."""
    table_rows = load("flash", table)
    data = select(table_rows, metric=BOTH, precision="bf16", compiled_call=False)
    data = data[data["batch_size"] * data["heads"] > 1]
    if not len(data):
        save_note("not measured", output)
        return
    data = data.assign(sequences=data["batch_size"] * data["heads"])
    shapes = sorted(set(zip(data["sequence"], data["sequences"], strict=True)))
    place = {shape: index for index, shape in enumerate(shapes)}
    shown = sorted(set(zip(~data["causal"], data["d"], strict=True)))
    rows = (len(shown) + 1) // 2
    figure, panels = subplots(min(2, len(shown)), rows=rows, height=0.9 + 2.2 * rows)
    for axes, (whole, d) in zip(panels, shown, strict=False):
        cells = select(data, causal=not whole, d=d)
        for name, look in looks(table_rows).items():
            of_name = select(cells, implementation=name)
            for length in sorted(set(of_name["sequence"])):
                own = select(of_name, sequence=length).sort_values("sequences")
                flops = [flash_flops(BOTH, 1, n, length, d, causal=not whole) for n in own["sequences"]]
                rates = [work / time / 1e9 for work, time in zip(flops, own["median"], strict=True)]
                places = [place[length, sequences] for sequences in own["sequences"]]
                axes.plot(places, rates, **look)
        axes.set_title(f"d = {d}, {'no mask' if whole else 'causal'}")
        axes.set_xticks(range(len(shapes)), [f"{n} × {length}" for length, n in shapes], rotation=60, fontsize=7)
        axes.tick_params(labelbottom=True)
    for axes in panels[len(shown) :]:
        axes.axis("off")
    for axes in panels[:: min(2, len(shown))]:
        axes.set_ylabel("TFLOP/s")
    panels[0].set_ylim(bottom=0)
    legend(panels, ncols=4, handlelength=3)
    save(figure, output)
