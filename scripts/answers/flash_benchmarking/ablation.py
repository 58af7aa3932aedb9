"""The gain from each design decision of the Triton kernels, for `flash_benchmarking`."""

from pandas import DataFrame, Series

from scripts.rendering.answer import Answer, Captioned, least_and_most, say
from scripts.rendering.markup import Table, fixed_point
from scripts.views.data import one, select
from scripts.views.spread import MARKS, mark, marked

DECISIONS = {
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
PHASES = ("forward", "backward")


def ablation(table: DataFrame) -> Answer:
    """One decision reverted at a time, in each precision."""
    rows = {name: select(table, precision=name) for name in ("bf16", "fp32")}
    rows = {name: own for name, own in rows.items() if len(select(own, metric="forward"))}
    if not rows:
        return Answer("Design decisions", missing="Not measured: the kernels need a GPU.")
    costs = [
        say(
            "In {name}, _{costly}_ costs most: {gain:span times} the time.",
            name=name,
            costly=DECISIONS.get(str(medians.idxmax())) if len(medians) else None,
            gain=least_and_most(worth.get_group(medians.idxmax())) if len(medians) else None,
        )
        for name, own in rows.items()
        for worth in [worths(own).groupby("without")["worth"]]
        for medians in [worth.median()]
    ]
    lengths = [f"{name}: {own['heads'].max()} heads of {own['sequence'].max()} tokens" for name, own in rows.items()]
    return Answer(
        asked="Design decisions",
        verdict=costs[0],
        more=say(*costs[1:]),
        evidence=Captioned(
            ablation_table(rows),
            "Time of the Triton kernels in ms, and relative time with one decision reverted; causal, "
            f"{', '.join(lengths)}.",
            legend={"–": "–: does not apply", **MARKS},
        ),
        reason=say(
            "Each decision is reverted alone, with the tiles that were chosen for it. If these tiles no longer "
            "suit, the ratio is far larger than in kernels tuned without the decision."
        ),
    )


def worths(rows: DataFrame) -> DataFrame:
    """The rows of passes with a decision reverted, and their `worth`: their time over that of the kernels as is."""
    timed = rows[rows["metric"].isin(PHASES) & (rows["status"] == "ok")]
    usual = select(timed, without="nothing")[["metric", "d", "median"]]
    both = timed[timed["without"].isin(list(DECISIONS))].merge(usual, on=["metric", "d"], suffixes=("", "_usual"))
    return both.assign(worth=both["median"] / both["median_usual"])


def ablation_table(rows: dict[str, DataFrame]) -> Table:
    """One line per decision, after the times with all of them."""
    every = {name: worths(own) for name, own in rows.items()}
    columns = [(name, d, phase) for name, own in rows.items() for d in sorted(set(own["d"])) for phase in PHASES]

    def gain(row: Series | None) -> str:
        return "–" if row is None else fixed_point(row["worth"], 2, f"×{mark(row)}")

    usual = (one(rows[name], without="nothing", metric=phase, d=d) for name, d, phase in columns)
    body = [["unchanged / ms", *(marked(row, 2) or "–" for row in usual)]]
    for decision, title in DECISIONS.items():
        changed = (one(every[name], without=decision, metric=phase, d=d) for name, d, phase in columns)
        cells = list(map(gain, changed))
        body += [[title, *cells]] if any(cell != "–" for cell in cells) else []
    groups = [("", 1), *((f"{name}, d = {d}", len(PHASES)) for name, d, phase in columns if phase == PHASES[0])]
    return Table(["reverted", *[*PHASES] * (len(columns) // 2)], body, groups=groups)
