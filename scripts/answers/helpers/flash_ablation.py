"""What each decision of the attention kernels is worth, for `flash_benchmarking`."""

from pandas import DataFrame

from scripts.data import select, statistic
from scripts.markup import Table

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
                cell = {"d": d, "metric": phase}
                usual, changed = (statistic(rows, "median", without=name, **cell) for name in ("nothing", decision))
                line += [f"{changed:.2f}", f"{changed / usual:.2f}×"] if usual and changed else ["–", ""]
        body.append(line)
    groups = [("", 1), *((f"d = {d}, {phase} / ms", 2) for d in dimensions for phase in ("forward", "backward"))]
    return Table(["variant", *["", ""] * 2 * len(dimensions)], body, groups=groups)
