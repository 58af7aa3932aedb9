"""The tensors that one Transformer block saves for its backward pass, and its gradients, for `memory_profiling`."""

from pandas import DataFrame, Series

from cs336_systems.accounting.units import MIB
from scripts.rendering.answer import Answer, Captioned, Facts, choose, count, say
from scripts.rendering.grid import NONE, grid
from scripts.rendering.markup import Table, percent
from scripts.views.closed_forms import FLASH, block_of, saved_by
from scripts.views.data import flat, select, size_order
from scripts.views.units import BYTE

CELL = ["context", "precision", "attention"]
CONTRIBUTORS = 5
"""How many of each cell's largest tensors are listed."""


def block(table: DataFrame) -> dict[str, Answer]:
    """Sub-question (f): the tensors saved by one block, and the gradients of its backward pass."""
    cells = block_cells(table)
    asked = "(f) Saved by one block", "(f) A block's gradients"
    if not len(cells):
        return {"saved": Answer(asked[0]), "gradients": Answer(asked[1])}
    context = int(cells["context"].max())
    longest = select(cells, context=context)
    full = longest.iloc[0]
    saved = select(rows_of(table, full), metric="saved")
    by_operator = saved.groupby(saved["operator"].replace("", FLASH))["mean"].sum()
    sizes = {(row["precision"], row["attention"]): row["saved"] for _, row in longest.iterrows()}
    plain, flash = (sizes.get(key) for key in (("fp32", "plain"), ("fp32", "flash")))
    exact = (cells["gradients"] - cells["expected"]).abs().dropna() < BYTE
    facts = Facts(full=full, context=context)
    return {
        "saved": Answer(
            asked=asked[0],
            verdict=facts.say(
                "A block of {full[label]} saves {full[saved]:MiB} at context {context} ({full[precision]}, "
                "{full[attention]} attention); {most / full[saved]:percent} is from {operator}.",
                most=by_operator.max() if len(by_operator) else None,
                operator=by_operator.idxmax() if len(by_operator) else None,
            ),
            more=say("With FlashAttention it saves {size:MiB}.", size=flash if plain else None),
            results=Captioned(
                contributors(table, longest),
                facts.say("The largest tensors that one block of {full[label]} saves for backward, context {context}."),
                legend={NONE: f"{NONE}: not saved"},
            ),
            reason=say(
                "The probabilities grow with the square of the context. FlashAttention instead saves its output "
                "and one number per row of scores.",
            ),
        ),
        "gradients": Answer(
            asked=asked[1],
            verdict=facts.say(
                "A block of {full[label]} produces {full[gradients]:MiB} of gradients at context {context}, "
                + choose(bool(exact.all()), "exactly as expected.", "but not every cell is as expected.")
            ),
            more=facts.say("The weights' gradients take {full[weights]:MiB}, the input's {full[input]:MiB}."),
            reason=facts.say(
                "In both precisions, 4 bytes per weight and batch × context × d_model × 4 bytes for the input are "
                "expected; {held} of {cells} agree.",
                held=int(exact.sum()),
                cells=count(len(exact), "cell"),
            ),
        ),
    }


def block_cells(table: DataFrame) -> DataFrame:
    """One row per cell of the largest size: by context, fp32 and plain attention first.

    Additional columns, in MiB: `saved`; the gradients of weights (`weights`) and of the block's input (`input`), and
    their sum (`gradients`), and its closed form (`expected`).
    """
    cells = select(table, metric="saved_activations")
    cells = select(cells, size=(size_order(cells) or [""])[-1]).sort_values(CELL, ascending=[True, False, False])
    keys = ["size", *CELL]
    for name, metric in {"weights": "parameter_gradients", "input": "input_gradient"}.items():
        cells = cells.join(select(table, metric=metric).set_index(keys)["mean"].rename(name).astype(float), on=keys)
    blocks = [block_of(row) for _, row in cells.iterrows()]
    return cells.assign(
        saved=cells["mean"],
        gradients=cells["weights"] + cells["input"],
        expected=[(block.parameter_gradients + block.residual) / MIB for block in blocks],
    )


def rows_of(table: DataFrame, cell: Series) -> DataFrame:
    """All rows of a row's cell."""
    return select(table, size=cell["size"], **{name: cell[name] for name in CELL})


def contributors(table: DataFrame, cells: DataFrame) -> Table:
    """The largest contributors of each cell, one row each: a description, then MiB and share in every cell."""
    tensor, lines = ["module", "operator", "what is saved"], []
    for _, cell in cells.iterrows():
        rows = select(rows_of(table, cell), metric="saved").sort_values("mean", ascending=False, kind="stable")
        for rank, row in enumerate(rows.to_dict("records")):
            known = saved_by(cell).get((row["range"], row["operator"], row["tensor"]), [])
            meaning = ", ".join(each.meaning for each in known) or "not in the closed form"
            line = dict(zip(tensor, (row["range"], row["operator"] or FLASH, meaning), strict=True))
            line |= {"cell": f"{cell['precision']}, {cell['attention']}", "rank": rank}
            lines.append(line | {"mib": row["mean"], "share": str(percent(row["mean"] / cell["mean"]))})
    tensors = DataFrame(lines)
    by_tensor = tensors.groupby(tensor)
    tensors["most"] = by_tensor["mib"].transform("max")
    tensors = tensors[by_tensor["rank"].transform("min") < CONTRIBUTORS]
    tensors = tensors.sort_values("most", ascending=False, kind="stable")
    wide = flat(tensors.pivot(index=["most", *tensor], columns="cell", values=["mib", "share"]))
    names = dict.fromkeys(line["cell"] for line in lines)
    groups = {cell: {"MiB": f"{{mib {cell}:sig}}", "share": f"{{share {cell}}}"} for cell in names}
    columns = {"": {name: f"{{{name}}}" for name in tensor}, **groups}
    return grid(wide.reset_index().sort_values("most", ascending=False, kind="stable"), columns, text_columns=3)
