"""What the sections on sharded optimizers share."""

import pandas
from pandas import DataFrame, Series

from scripts.rendering.markup import Table
from scripts.views.data import select
from scripts.views.optimizer_sharding import CONTENDERS, PHASES, cell_name, compared
from scripts.views.wrappers import NONE, fixed


def step_table(table: DataFrame, rows: DataFrame) -> Table:
    """Every contender's steps, cell by cell; those that could not be measured have their reason."""
    profiled = bool(rows["timeline_length"].notna().any())
    lost = compared(table)
    lost = lost[(lost["metric"] == "step") & (lost["status"] != "ok")]
    lost = lost.assign(cell=[cell_name(row) for _, row in lost.iterrows()])
    titles = ["median", "p20–p80", *PHASES, *(["comm.", "hidden / %", "compute"] if profiled else [])]
    body: list[list[str]] = []
    for name, cell in rows.groupby("cell", sort=False):
        body.append([str(name)])
        body += [[row["title"], *step_cells(row, profiled=profiled)] for _, row in cell.iterrows()]
        for _, row in select(lost, cell=name).iterrows():
            body.append([CONTENDERS[row["contender"]], *[f"not measured: {row['message']}"] * len(titles)])
    groups = [
        ("", 1),
        ("step / ms", 2),
        ("timed apart / ms", len(PHASES)),
        *([("profile / ms", 3)] if profiled else []),
    ]
    shown = {"synchronization": "sync."}
    return Table(["", *(shown.get(title, title) for title in titles)], body, groups=groups)


def step_cells(row: Series, *, profiled: bool) -> list[str]:
    """The times of a contender as text."""
    cells = [f"{fixed(row['median'])}{' *' if row['wide'] else ''}", f"{fixed(row['p20'])}–{fixed(row['p80'])}"]
    cells += [fixed(row[phase]) for phase in PHASES]
    if profiled:
        hidden = row["hidden"] / row["communication"] if row["communication"] else float("nan")
        share = NONE if pandas.isna(hidden) else f"{100 * hidden:.0f}"
        cells += [fixed(row["communication"]), share, fixed(row["compute"])]
    return cells
