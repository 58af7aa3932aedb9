"""The gain from each design decision of the Triton kernels, for `flash_benchmarking`."""

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer, Captioned, least_and_most, say
from scripts.rendering.grid import Columns, grid
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.attention_times import ENOUGH
from scripts.views.data import flat, select
from scripts.views.spread import MARKS, mark

DECISIONS = {
    "nothing": "unchanged / ms",
    "descriptors": "tiles loaded by pointers",
    "preprocess": "L and D recomputed for every tile",
    "register_limit": "no limit on registers",
    "stage": "one pipeline stage fewer",
    "block_outer": "half as many rows per program",
    "block_inner": "half as many rows per iteration",
    "bf16x6": "each matmul as three TF32 matmuls",
    "matrix_units": "matmuls on the fp32 units",
}
"""The table's name for each reverted decision."""
PHASES = ["forward", "backward"]


def ablation(table: DataFrame, ours: str) -> Answer:
    """One decision reverted at a time, in each precision; `ours` names the kernels that run without ablation."""
    rows = passes(table)
    if not len(rows):
        return Answer("Design decisions", missing="Not measured: the kernels need a GPU.")
    costs = [costliest(own) for _, own in rows.groupby("precision")]
    lengths = [
        f"{name}: {own['heads'].max()} heads of {own['sequence'].max()} tokens"
        for name, own in rows.groupby("precision")
    ]
    return Answer(
        asked="Design decisions",
        verdict=costs[0],
        more=say(*costs[1:]),
        results=Captioned(
            ablation_table(rows),
            "Time of the Triton kernels in ms, and relative time with one decision reverted; causal, random gradients, "
            f"{', '.join(lengths)}.",
            legend={"–": "–: does not apply", **MARKS},
        ),
        reason=say(
            "At such lengths in bf16 this GPU otherwise runs the Gluon kernels (@sec-flash_forward)."
            if "Gluon" in ours
            else "",
            "Each decision is reverted alone, with the tiles that were chosen with it. If these tiles no longer suit, "
            "the ratio can be far larger than in kernels tuned without the decision.",
        ),
    )


def passes(table: DataFrame) -> DataFrame:
    """The timed passes, and their `worth`: their time over the unchanged kernels' time."""
    keys = ["precision", "d", "metric"]
    timed = table[table["metric"].isin(PHASES) & (table["status"] == "ok") & table["without"].isin(list(DECISIONS))]
    usual = select(timed, without="nothing").set_index(keys)["median"].rename("usual")
    timed = timed.join(usual, on=keys)
    return timed.assign(worth=timed["median"] / timed["usual"])


def costliest(rows: DataFrame) -> Typst:
    """The decision of one precision whose reversal costs most."""
    worth = rows[(rows["without"] != "nothing") & (rows["n"] > 1)].dropna(subset="worth").groupby("without")["worth"]
    if not worth.ngroups:
        return NOTHING
    if worth.size().max() < ENOUGH:
        worst = rows.loc[worth.idxmax()].sort_values("worth").iloc[-1]
        words = "In {row[precision]}, the costliest reversal is _{costly}_: {row[worth]:times} the {row[metric]} time."
        return say(words, row=worst, costly=DECISIONS[worst["without"]])
    decision = worth.median().idxmax()
    aside = "; cases measured once are left out." if ((rows["without"] == decision) & (rows["n"] <= 1)).any() else "."
    return say(
        "In {name}, the costliest reversal is _{costly}_: {gain:span times} the time" + aside,
        name=rows["precision"].iloc[0],
        costly=DECISIONS[str(decision)],
        gain=least_and_most(worth.get_group(decision)),
    )


def ablation_table(rows: DataFrame) -> Table:
    """One line per decision, after the times with all of them."""
    texts = [
        fixed_point(row["median"], 2, mark(row))
        if row["without"] == "nothing"
        else fixed_point(row["worth"], 2, f"×{mark(row)}")
        for _, row in rows.iterrows()
    ]
    rows = rows.assign(text=texts)
    wide = flat(rows.pivot(index="without", columns=["precision", "d", "metric"], values="text"))
    kinds = sorted(set(zip(rows["precision"], rows["d"], strict=True)))
    columns: Columns = {"": {"reverted": "{title}"}} | {
        f"{precision}, d = {d}": {phase: f"{{{precision} {d} {phase}}}" for phase in PHASES} for precision, d in kinds
    }
    lines = wide.reindex(
        [name for name in DECISIONS if name in wide.index],
        columns=[f"{precision} {d} {phase}" for precision, d in kinds for phase in PHASES],
    )
    return grid(lines.assign(title=lines.index.map(DECISIONS)), columns)
