"""What each design decision of the Triton kernels is worth, for `flash_benchmarking`."""

from statistics import median

from pandas import DataFrame

from scripts.rendering.answer import NOTHING, Answer, Captioned, paragraph, say
from scripts.rendering.markup import Table, Typst, fixed_point
from scripts.views.data import one, ratio, select, statistic
from scripts.views.spread import legend, mark, marked

DECISIONS = {
    "descriptors": "tiles loaded by pointers",
    "preprocess": "L and D recomputed for every tile",
    "register_limit": "no limit on registers",
    "stage": "one pipeline stage fewer",
    "block_outer": "half as many rows per program",
    "block_inner": "half as many rows per iteration",
    "bf16x6": "each product as three TF32 products",
    "matrix_units": "products on the fp32 units",
}
"""What the table calls each reverted decision."""
PHASES = ("forward", "backward")


def ablation(table: DataFrame) -> Answer:
    """One decision reverted at a time, in each precision."""
    asked = "Design decisions"
    rows = {name: select(table, precision=name) for name in ("bf16", "fp32")}
    rows = {name: own for name, own in rows.items() if len(select(own, metric="forward"))}
    if not rows:
        return Answer(asked, NOTHING, missing="Not measured: the kernels need a GPU.")
    shown = ablation_table(rows)
    lengths = ", ".join(
        f"{name}: {own['heads'].max()} heads of {own['sequence'].max()} tokens" for name, own in rows.items()
    )
    first, *others = (costliest(own, precision) for precision, own in rows.items())
    return Answer(
        asked=asked,
        verdict=first,
        more=paragraph(*others),
        evidence=[
            Captioned(
                shown,
                "The Triton kernels as they are, ms, and how many times as long they take with one decision reverted; "
                f"causal, {lengths}. –: not a decision there. "
                f"{legend(shown)}".strip(),
            )
        ],
        reason=Typst(
            "Each is reverted alone, and the tiles that were chosen with it are kept: where they no longer suit, a "
            "ratio "
            "is far larger than what the decision would cost in kernels tuned without it."
        ),
    )


def worth(rows: DataFrame, phase: str, decision: str, d: int) -> float | None:
    """A pass's time without a decision over that with it; None where it does not make it."""
    changed, usual = (
        statistic(rows, "median", metric=phase, without=without, d=d) for without in (decision, "nothing")
    )
    return ratio(changed, usual)


def costliest(rows: DataFrame, precision: str) -> Typst:
    """The reversal that costs most, by the median over passes and head dimensions."""
    worths = {
        title: median(known)
        for decision, title in DECISIONS.items()
        if (known := [gain for d in set(rows["d"]) for phase in PHASES if (gain := worth(rows, phase, decision, d))])
    }
    costly = max(worths, key=lambda title: worths[title], default=None)
    return say(
        "In {precision} the costliest reversal is _{costly}_: {gain:times} the time (median).",
        precision=precision,
        costly=costly,
        gain=worths.get(costly) if costly else None,
    )


def ablation_table(rows: dict[str, DataFrame]) -> Table:
    """One line per decision, after the times with all of them."""
    columns = [(own, phase, d) for own in rows.values() for d in sorted(set(own["d"])) for phase in PHASES]
    body = [["as they are / ms", *(marked(one(own, without="nothing", metric=p, d=d), 2) for own, p, d in columns)]]
    for decision, title in DECISIONS.items():
        line = [title]
        for own, phase, d in columns:
            changed = one(own, without=decision, d=d, metric=phase)
            line.append(fixed_point(worth(own, phase, decision, d), 2, "×" if changed is None else f"×{mark(changed)}"))
        body.append(line)
    groups = [("", 1), *((f"{name}, d = {d}", 2) for name, own in rows.items() for d in sorted(set(own["d"])))]
    return Table(["reverted", *[*PHASES] * (len(columns) // 2)], body, groups=groups)
