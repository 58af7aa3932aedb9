"""Answers on what one Transformer block keeps: by operator, in all, and the gradients its backward pass makes."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from scripts.rendering.markup import Table, fixed, percent, significant
from scripts.views.closed_forms import FLASH, block_of, not_as_derived, saved_by
from scripts.views.data import one, select, size_order, statistic
from scripts.views.units import BYTE

CELL = ["context", "precision", "attention"]
CONTRIBUTORS = 5


def block_answers(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """Values and tables of the block's part; `measured` says whether there are any."""
    table = tables["block_memory"]
    measured = select(table, metric="saved_activations")
    if not len(measured):
        return {"measured": False}
    table = select(table, size=size_order(measured)[-1])
    cells = [row for _, row in in_order(select(table, metric="saved_activations")).iterrows()]
    context = max(int(row["context"]) for row in cells)
    longest = [row for row in cells if row["context"] == context]
    return {
        "measured": True,
        "label": cells[0]["label"],
        "context": context,
        "batch": int(cells[0]["batch_size"]),
        "count": CONTRIBUTORS,
        "contributors": contributors(table, longest),
        "totals": totals(table, cells),
        "exact": not any(not_as_derived(row, rows_of(table, row)) for row in cells),
        "scores": scores(table, cells),
        "copies": copies(table, longest),
        "doubled": doubled(table, longest),
        "gradients": gradients(table, cells),
    }


def rows_of(table: DataFrame, cell: Series) -> DataFrame:
    """All rows of a row's cell."""
    return select(table, **{name: cell[name] for name in CELL})


def in_order(cells: DataFrame) -> DataFrame:
    """Cells by context, fp32 and plain attention first."""
    return cells.sort_values(CELL, ascending=[True, False, False])


def contributors(table: DataFrame, cells: list[Series]) -> Table:
    """The largest contributors of each cell, one row each: what they are, then MiB and share in every cell."""
    found: dict[tuple[str, ...], dict[int, tuple[float, str]]] = {}
    largest: list[tuple[str, ...]] = []
    for number, cell in enumerate(cells):
        rows = select(rows_of(table, cell), metric="saved").sort_values("mean", ascending=False, kind="stable")
        for rank, (_, row) in enumerate(rows.iterrows()):
            tensors = saved_by(cell).get((row["range"], row["operator"], row["tensor"]), [])
            key = (
                row["range"],
                row["operator"] or FLASH,
                ", ".join(tensor.meaning for tensor in tensors) or "not in the closed form",
                f"{len(tensors) or 1} of {row['tensor'].partition(' ')[2]}",
            )
            found.setdefault(key, {})[number] = (row["mean"], str(percent(row["mean"] / cell["mean"])))
            if rank < CONTRIBUTORS:
                largest.append(key)
    body = []
    for shown in sorted(dict.fromkeys(largest), key=lambda shown: -max(mib for mib, _ in found[shown].values())):
        line = list(shown)
        for number in range(len(cells)):
            mib, share = found[shown].get(number, (None, "–"))
            line += ["–" if mib is None else str(significant(mib)), share]
        body.append(line)
    groups = [("", 4), *((f"{cell['precision']}, {cell['attention']}", 2) for cell in cells)]
    header = ["module", "operator", "what they are", "tensors", *["MiB", "share"] * len(cells)]
    return Table(header, body, text_columns=4, groups=groups)


def totals(table: DataFrame, cells: list[Series]) -> Table:
    """All that each cell saves and the gradients that it makes, beside closed forms."""
    columns: dict[str, list[float | None]] = {}

    def metric(name: str) -> list[float | None]:
        return [statistic(rows_of(table, cell), "mean", metric=name) for cell in cells]

    blocks = [block_of(cell) for cell in cells]
    columns["saved"] = metric("saved_activations")
    columns["closed form"] = [block.saved_bytes / MIB for block in blocks]
    columns["bf16 weights"] = metric("saved_weight_copies")
    columns["left by forward"] = metric("left_by_forward")
    columns["of weights"], columns["of input"] = metric("parameter_gradients"), metric("input_gradient")
    columns["expected"] = [(block.parameter_gradients + block.residual) / MIB for block in blocks]
    columns["left by backward"] = metric("left_by_backward")
    columns = {title: values for title, values in columns.items() if any(value is not None for value in values)}
    texts = [fixed(values) for values in columns.values()]
    body = [
        [str(cell["context"]), cell["precision"], cell["attention"], *(column[index] or "–" for column in texts)]
        for index, cell in enumerate(cells)
    ]
    forward = sum(title in columns for title in ("saved", "closed form", "bf16 weights", "left by forward"))
    groups = [("", 3), ("saved for backward / MiB", forward), ("gradients / MiB", len(columns) - forward)]
    return Table([*CELL, *columns], body, text_columns=3, groups=groups)


def scores(table: DataFrame, cells: list[Series]) -> dict[str, Any] | None:
    """The share of plain attention's weights and mask at the shortest and at the longest context, in fp32."""
    plain = [row for row in cells if row["attention"] == "plain" and row["precision"] == "fp32"]
    if len(plain) < 2:
        return None

    def share(cell: Series) -> float:
        rows = select(rows_of(table, cell), metric="saved")
        return float(rows[rows["operator"].isin(["softmax", "masked_fill"])]["mean"].sum() / cell["mean"])

    flash = statistic(
        table, "mean", metric="saved_activations", context=plain[-1]["context"], precision="fp32", attention="flash"
    )
    return {
        "short": int(plain[0]["context"]),
        "long": int(plain[-1]["context"]),
        "at_short": share(plain[0]),
        "at_long": share(plain[-1]),
        "against_flash": plain[-1]["mean"] / flash if flash else None,
    }


def copies(table: DataFrame, cells: list[Series]) -> list[str]:
    """The projections that each keep a copy of their own of one normalized input, where autocast made them."""
    bf16 = [row for row in cells if row["precision"] == "bf16"]
    if not bf16:
        return []
    rows = select(rows_of(table, bf16[0]), metric="saved", operator="linear")
    return [name for name in rows["range"] if name in ("attention.query", "attention.key", "attention.value")]


def doubled(table: DataFrame, cells: list[Series]) -> dict[str, float] | None:
    """MiB of plain attention's weights as softmax and as the product saves them, where autocast makes them two."""
    for cell in cells:
        if cell["attention"] == "plain" and cell["precision"] == "bf16":
            rows = select(rows_of(table, cell), metric="saved", range="attention")
            softmax = one(rows, operator="softmax")
            if softmax is None or not softmax["tensor"].startswith("float32"):
                return None
            pairs = f"{cell['context']}×{cell['context']}"
            cast = rows[(rows["operator"] == "matmul") & rows["tensor"].str.endswith(pairs)]
            fp32 = statistic(
                table, "mean", metric="saved_activations", precision="fp32", attention="plain", context=cell["context"]
            )
            if len(cast) and fp32:
                ratio = cell["mean"] / fp32
                return {"softmax": softmax["mean"], "product": float(cast["mean"].sum()), "ratio": ratio}
    return None


def gradients(table: DataFrame, cells: list[Series]) -> dict[str, Any]:
    """The gradients of the last cell: measured, expected, and whether every cell's are as expected."""
    last = cells[-1]

    def measured(cell: Series) -> float | None:
        rows = rows_of(table, cell)
        weights, given = (statistic(rows, "mean", metric=name) for name in ("parameter_gradients", "input_gradient"))
        return None if weights is None or given is None else weights + given

    def expected(cell: Series) -> float:
        block = block_of(cell)
        return (block.parameter_gradients + block.residual) / MIB

    pairs = [(measured(cell), expected(cell)) for cell in cells]
    return {
        "measured": pairs[-1][0],
        "expected": pairs[-1][1],
        "weights": block_of(last).parameter_gradients / MIB,
        "input": block_of(last).residual / MIB,
        "exact": all(found is not None and abs(found - wanted) < BYTE for found, wanted in pairs),
    }
