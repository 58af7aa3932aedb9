"""The tensors that one Transformer block saves for its backward pass, by tensor."""

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from scripts.rendering.markup import Table, fixed, percent, significant
from scripts.views.closed_forms import FLASH, block_of, saved_by
from scripts.views.data import select, size_order, statistic
from scripts.views.units import BYTE

CELL = ["context", "precision", "attention"]
CONTRIBUTORS = 5
"""How many of each cell's largest tensors are listed."""


def block_cells(table: DataFrame) -> DataFrame:
    """One row per cell of the largest size: by context, fp32 and plain attention first.

    Columns next to a row's own: `saved` and the gradients of weights (`weights`) and of the block's input (`input`),
    their sum (`gradients`), what both passes leave allocated (`left_by_forward`, `left_by_backward`) and autocast's
    copies (`copies`), all in MiB; `derived` and `expected`, closed forms of what is saved and of the gradients.
    """
    found = select(table, metric="saved_activations")
    found = select(found, size=(size_order(found) or [""])[-1]).sort_values(CELL, ascending=[True, False, False])
    metrics = {
        "weights": "parameter_gradients",
        "input": "input_gradient",
        "left_by_forward": "left_by_forward",
        "left_by_backward": "left_by_backward",
        "copies": "saved_weight_copies",
    }
    cells = [rows_of(table, row) for _, row in found.iterrows()]
    values = {name: [statistic(rows, "mean", metric=metric) for rows in cells] for name, metric in metrics.items()}
    blocks = [block_of(row) for _, row in found.iterrows()]
    found = found.assign(
        saved=found["mean"],
        derived=[block.saved_bytes / MIB for block in blocks],
        expected=[(block.parameter_gradients + block.residual) / MIB for block in blocks],
        **{name: Series(column, index=found.index, dtype=float) for name, column in values.items()},
    )
    return found.assign(gradients=found["weights"] + found["input"])


def rows_of(table: DataFrame, cell: Series) -> DataFrame:
    """All rows of a row's cell."""
    return select(table, size=cell["size"], **{name: cell[name] for name in CELL})


def contributors(table: DataFrame, cells: DataFrame) -> Table:
    """The largest contributors of each cell, one row each: what they are, then MiB and share in every cell."""
    found: dict[tuple[str, ...], dict[int, tuple[float, str]]] = {}
    largest: list[tuple[str, ...]] = []
    for number, (_, cell) in enumerate(cells.iterrows()):
        rows = select(rows_of(table, cell), metric="saved").sort_values("mean", ascending=False, kind="stable")
        for rank, (_, row) in enumerate(rows.iterrows()):
            tensors = saved_by(cell).get((row["range"], row["operator"], row["tensor"]), [])
            key = (
                row["range"],
                row["operator"] or FLASH,
                ", ".join(tensor.meaning for tensor in tensors) or "not in the closed form",
            )
            found.setdefault(key, {})[number] = (row["mean"], str(percent(row["mean"] / cell["mean"])))
            if rank < CONTRIBUTORS:
                largest.append(key)
    body = []
    for shown in sorted(dict.fromkeys(largest), key=lambda shown: -max(mib for mib, _ in found[shown].values())):
        here = [found[shown].get(number) for number in range(len(cells))]
        body.append(
            [*shown, *(text for each in here for text in ([str(significant(each[0])), each[1]] if each else "––"))]
        )
    groups = [("", 3), *((f"{cell['precision']}, {cell['attention']}", 2) for _, cell in cells.iterrows())]
    header = ["module", "operator", "what is saved", *["MiB", "share"] * len(cells)]
    return Table(header, body, text_columns=3, groups=groups)


def totals(cells: DataFrame) -> Table:
    """All that each cell saves and the gradients that it makes, next to closed forms."""
    columns = {
        "saved": "saved",
        "derived": "closed form",
        "copies": "bf16 weights",
        "left_by_forward": "left by forward",
        "gradients": "gradients",
        "expected": "expected",
        "left_by_backward": "left by backward",
    }
    shown = {name: title for name, title in columns.items() if cells[name].notna().any()}
    texts = {name: fixed(list(cells[name])) for name in shown}
    body = [
        [str(cell["context"]), cell["precision"], cell["attention"], *(texts[name][place] or "–" for name in shown)]
        for place, (_, cell) in enumerate(cells.iterrows())
    ]
    return Table([*CELL, *shown.values()], body, text_columns=3)


def too_much(cells: DataFrame) -> DataFrame:
    """The cells in which a backward pass leaves more allocated than its gradients, with the difference, MiB."""
    extra = cells["left_by_backward"] - cells["gradients"]
    return cells.assign(extra=extra)[extra > BYTE]
