"""What each decision of the attention kernels is worth, for `flash_benchmarking`."""

from pandas import DataFrame

from scripts.rendering.markup import Table
from scripts.views.data import one, ratio, select, statistic
from scripts.views.spread import marked

DECISIONS = {
    "nothing": "as it is",
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


def ablation_table(rows: DataFrame) -> Table | None:
    """What each decision is worth: the time without it, and that over the time with it."""
    dimensions = sorted(rows["d"].unique())
    if not len(select(rows, metric="forward", status="ok")):
        return None
    body = []
    for decision, title in DECISIONS.items():
        if not len(select(rows, without=decision)):
            continue
        line = [title]
        for d in dimensions:
            for phase in ("forward", "backward"):
                worth = gain(rows, phase, decision, d=d)
                changed = one(rows, without=decision, d=d, metric=phase)
                line += [marked(changed, 2), f"{worth:.2f}×"] if worth else ["–", ""]
        body.append(line)
    groups = [("", 1), *((f"d = {d}, {phase} / ms", 2) for d in dimensions for phase in ("forward", "backward"))]
    return Table(["variant", *["", ""] * 2 * len(dimensions)], body, groups=groups)


def gain(rows: DataFrame, phase: str, decision: str, **cell: int) -> float | None:
    """A pass's time without a decision over that with it; None where it does not make it."""
    changed, usual = (
        statistic(rows, "median", metric=phase, without=without, **cell) for without in (decision, "nothing")
    )
    return ratio(changed, usual)


def fp32_units(ablations: DataFrame) -> tuple[float, float] | None:
    """How much longer our kernels take in fp32 where their products run on the fp32 units: the least and the most."""
    rows = select(ablations, precision="fp32")
    gains = [gain(rows, phase, "matrix_units", d=d) for phase in ("forward", "backward") for d in set(rows["d"])]
    known = [worth for worth in gains if worth]
    return (min(known), max(known)) if known else None
