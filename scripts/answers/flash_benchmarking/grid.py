"""Ours beside plain attention at every shape, for `flash_benchmarking`."""

from pandas import DataFrame

from scripts.rendering.markup import Table
from scripts.views.attention_calls import PASSES, median_time
from scripts.views.data import one, ratio, reason, select
from scripts.views.spread import marked


def grid_table(rows: DataFrame) -> Table | None:
    """Ours (the kernels, or the PyTorch version where they cannot run) next to plain attention, at every shape."""
    ours = "triton" if "triton" in set(select(rows, status="ok")["implementation"]) else "tiled"
    cells = sorted(set(zip(rows["sequence"], rows["d"], strict=True)))
    if not cells:
        return None
    body = []
    for sequence, d in cells:
        cell = select(rows, sequence=sequence, d=d)
        line = [str(sequence), str(d)]
        for name in (ours, "plain"):
            own = select(cell, implementation=name)
            line += [marked(one(own, metric=timed_pass)) or reason(own) for timed_pass in PASSES]
        gain = ratio(*(median_time(cell, "forward_backward", implementation=name) for name in ("plain", ours)))
        line.append(f"{gain:.1f}×" if gain else "–")
        body.append(line)
    header = ["sequence", "d", *["forward", "backward", "both"] * 2, "plain / ours"]
    return Table(header, body, text_columns=0, groups=[("", 2), ("ours / ms", 3), ("plain / ms", 3), ("", 1)])


def tiled_table(rows: DataFrame) -> Table | None:
    """The tiled PyTorch version, eager and compiled, beside the kernels, where it was measured compiled."""
    compiled = select(rows, metric="forward_backward", implementation="tiled_compiled")
    body = []
    for _, cell in compiled.sort_values(["precision", "d", "sequence"]).iterrows():
        own = select(rows, metric="forward_backward", **{key: cell[key] for key in ("precision", "d", "sequence")})
        times = [one(own, implementation=name) for name in ("tiled", "tiled_compiled", "triton")]
        medians = [None if row is None else float(row["median"]) for row in times]
        gain = ratio(medians[0], medians[1])
        first = one(rows, metric="first_call", implementation="tiled_compiled", sequence=cell["sequence"], d=cell["d"])
        body.append(
            [
                *(cell["precision"], str(cell["sequence"]), str(cell["d"])),
                *(marked(row) or "–" for row in times),
                f"{gain:.2f}×" if gain else "–",
                "–" if first is None else f"{first['mean']:.1f}",
            ]
        )
    header = ["precision", "sequence", "d", "eager", "compiled", "kernels", "eager / compiled", "first call / s"]
    groups = [("", 3), ("both passes / ms", 3), ("", 2)]
    return Table(header, body, groups=groups) if body else None
