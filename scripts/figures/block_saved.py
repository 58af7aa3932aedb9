"""Tensors that one Transformer block saves for its backward pass, by operator, plain against flash attention."""

from dataclasses import replace

from pandas import DataFrame, concat

from scripts.rendering.style import NotDrawn, legend, look_of_bar, save, subplots
from scripts.views.closed_forms import FLASH, block_of
from scripts.views.data import load_at_one_setting, select, size_order

LEAST_SHARE = 0.05
"""Operators that never reach this share of a block's total are drawn as one."""

ALL_OTHERS = "all others"


def draw(table: str, output: str) -> None:
    """Horizontal bars in the order of the forward pass, one panel per precision, at the longest context."""
    data = select(load_at_one_setting("block_memory", table), metric="saved")
    if not len(data):
        raise NotDrawn("not measured")
    data = select(data, size=size_order(data)[-1])
    data = select(data, context=data["context"].max())
    forward = replace(block_of(data.iloc[0]), precision="bf16").saved()  # in which more modules save something
    order = [*dict.fromkeys([tensor.range for tensor in forward] + list(data["range"])), ALL_OTHERS]
    data = by_operator(data)
    data = data.sort_values("range", key=lambda ranges: ranges.map(order.index), kind="stable")
    names = list(dict.fromkeys(data["name"]))
    precisions = sorted(data["precision"].unique(), reverse=True)
    figure, panels = subplots(len(precisions), height=0.9 + 0.17 * len(names))
    for axes, precision in zip(panels, precisions, strict=True):
        for index, attention in enumerate(["plain", "flash"]):
            rows = select(data, precision=precision, attention=attention).set_index("name")["mean"]
            axes.barh(
                [position + (index - 0.5) * 0.4 for position in range(len(names))],
                [rows.get(name, 0.0) for name in names],
                0.38,
                **look_of_bar(attention, index),
            )
        axes.set(title=f"{precision}, context {data['context'].iloc[0]}", xlabel="saved for backward / MiB")
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(names)), names, fontsize=7.5)
    panels[0].invert_yaxis()
    legend(panels, ncols=2, title="attention")
    save(figure, output)


def by_operator(data: DataFrame) -> DataFrame:
    """One row per cell and operator of a module, small ones together at the end."""
    cell = ["context", "precision", "attention"]
    data = data.assign(name=data["range"] + ": " + data["operator"].replace("", FLASH))
    sums = data.groupby([*cell, "range", "name"], sort=False, as_index=False).agg({"mean": "sum"})
    share = sums["mean"] / sums.groupby(cell)["mean"].transform("sum")
    small = sums["name"].map(share.groupby(sums["name"]).max()) < LEAST_SHARE
    rest = sums[small].groupby(cell, sort=False, as_index=False).agg({"mean": "sum"})
    return concat([sums[~small], rest.assign(range=ALL_OTHERS, name=ALL_OTHERS)], ignore_index=True)
