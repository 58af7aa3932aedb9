"""What a data-parallel training step costs the host: launches, and the time that it needs for them."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import DataParallelTraining
from scripts.rendering.markup import Table, fixed_point
from scripts.views.comparison import compared, described
from scripts.views.data import select, size_order

COSTS = {"launches": "launches", "host": "ms", "each": "µs each"}
"""The columns of each cell."""


def host_table(table: DataFrame) -> tuple[str, Table] | None:
    """The smallest model for which it was measured, and its contenders' costs, cell by cell; None if there are none."""
    measured = table[table["metric"].isin(["launches", "host"]) & (table["status"] == "ok")]
    if not len(measured):
        return None
    rows = compared(DataParallelTraining, select(measured, size=size_order(measured)[0]))
    rows = described(DataParallelTraining, rows)
    costs = rows.pivot(index="title", columns=["cell", "metric"], values="median")
    cells = list(dict.fromkeys(rows["cell"]))
    body = []
    for title in dict.fromkeys(rows["title"]):
        line = [title]
        for cell in cells:
            launches, host = (costs.get((cell, metric), {}).get(title) for metric in ("launches", "host"))
            each = 1e3 * host / launches if launches and host else None
            line += [fixed_point(launches, 0), fixed_point(host, 2), fixed_point(each, 1)]
        body.append(line)
    groups = [("", 1), *((cell, len(COSTS)) for cell in cells)]
    return rows["label"].iloc[0], Table(["", *len(cells) * [*COSTS.values()]], body, groups=groups)
