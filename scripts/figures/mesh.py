"""The handout's mesh: times against the batch, and the smallest compute-bound batch against the split."""

from dataclasses import replace

from matplotlib.axes import Axes
from numpy import linspace

from scripts.rendering.style import COLOURS, MARKERS, annotate, legend, save, subplots
from scripts.views.parallelism import MESH


def draw(output: str) -> None:
    """Times of the given split next to the least batches of all splits of as many devices."""
    figure, (times, splits) = subplots(2, 3.0, sharey=False)
    draw_times(times)
    draw_splits(splits)
    legend([times], ncols=1, loc="outside lower left")
    legend([splits], ncols=1, loc="outside lower right")
    save(figure, output)


def draw_times(axes: Axes) -> None:
    """Compute and communication of a layer; marks where they are equally long."""
    batches = linspace(0, 1.6 * MESH.least_batch(overlapped=False), 100)
    lines = {
        "compute": [MESH.compute_seconds(batch) for batch in batches],
        "gathering weights": [MESH.weights_seconds for _ in batches],
        "gathering and scattering activations": [MESH.activations_seconds(batch) for batch in batches],
        "both collectives in turn": [MESH.communication_seconds(batch, overlapped=False) for batch in batches],
    }
    for index, (name, seconds) in enumerate(lines.items()):
        look = ["-", "--", "-.", ":"][index]
        axes.plot(batches, [1e3 * each for each in seconds], look, color=COLOURS[index], label=name)
    for overlapped, place, side in ((True, (-4, 5), "right"), (False, (5, -9), "left")):
        batch = MESH.least_batch(overlapped=overlapped)
        point = batch, 1e3 * MESH.compute_seconds(batch)
        axes.plot(*point, MARKERS[0], color="black")
        annotate(axes, point, f"{batch:.0f}", xytext=place, ha=side, fontsize=7.5)
    axes.set(
        title=f"FSDP over {MESH.fsdp:.0f}, tensor parallel over {MESH.tensor:.0f}",
        xlabel="tokens per device",
        ylabel="forward pass of a block / ms",
    )
    axes.set_ylim(bottom=0)


def draw_splits(axes: Axes) -> None:
    """The least batch against the size of the tensor-parallel axis; marks at powers of two, a cross at the best."""
    sizes = [2**power for power in range(int(MESH.devices).bit_length())]
    for overlapped, name, look, colour in (
        (True, "collectives overlap", "-", COLOURS[1]),
        (False, "collectives in turn", ":", COLOURS[3]),
    ):
        best = MESH.best_tensor(overlapped=overlapped)
        limit = MESH.best_tensor(overlapped=True)  # beyond, activations alone take longer than compute
        ends = linspace(1, limit if overlapped else 0.97 * limit, 200)
        axes.plot(ends, [least(size, overlapped=overlapped) for size in ends], look, color=colour, label=name)
        shown = [size for size in sizes if size < limit]
        axes.plot(shown, [least(size, overlapped=overlapped) for size in shown], MARKERS[0], color=colour)
        axes.plot([best], [MESH.best_batch(overlapped=overlapped)], "X", color="black", markersize=6)
    axes.set(
        title=f"all splits of {MESH.devices:.0f} devices",
        xlabel="size of the tensor-parallel axis",
        ylabel="least tokens per device",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.minorticks_off()
    axes.set_ylim(0, 1.05 * least(1, overlapped=False))


def least(tensor: float, *, overlapped: bool) -> float:
    """The least compute-bound batch with a tensor-parallel axis of another size and as many devices."""
    return replace(MESH, fsdp=MESH.devices / tensor, tensor=tensor).least_batch(overlapped=overlapped)
