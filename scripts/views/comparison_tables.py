"""What the sections that compare contenders share: their table, what all contenders have in common, and why none is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas
from pandas import DataFrame, Series

from cs336_systems.measure.measurement import WHOLE_CELL
from scripts.rendering.markup import NOT_MEASURED, Table, fixed_point, significant
from scripts.views.communication import BACKENDS, WIDE_SPREAD
from scripts.views.comparison import (
    ADD_UP,
    OWN,
    UNSTEADY,
    Kind,
    backend_of,
    compared,
    described,
    marked,
    names_in,
    unsteady_cells,
)
from scripts.views.data import reason, select

NONE = "–"


@dataclass(frozen=True)
class Column:
    """A column of the table of contenders."""

    title: str
    group: str
    """The title above it."""
    text: Callable[[Series], str]
    needs: str
    """The column of `contenders` without which it says nothing."""


def number(name: str, digits: int = 3) -> Callable[[Series], str]:
    """A column's number as text."""
    return lambda row: NONE if pandas.isna(row[name]) else str(significant(row[name], digits))


def fixed(value: float) -> str:
    """Milliseconds: one decimal from 10 on, two below."""
    decimals = 1 if abs(value) >= 10 else 2
    return NONE if pandas.isna(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def times(title: str, group: str, name: str) -> Column:
    """A column of milliseconds."""
    return Column(title, group, lambda row: fixed(row[name]), name)


def shares(title: str, group: str, name: str) -> Column:
    """A column of fractions, as percentages."""
    return Column(title, group, lambda row: fixed_point(100 * row[name], 0), name)


def memory(title: str, name: str) -> Column:
    """A column of memory."""
    return Column(title, "GiB", lambda row: fixed_point(row[name] / 1024), name)


STEP = [
    Column("median", "step / ms", lambda row: f"{fixed(row['median'])}{' *' if row['wide'] else ''}", "median"),
    Column("p20–p80", "step / ms", lambda row: f"{fixed(row['p20'])}–{fixed(row['p80'])}", "p20"),
]
EXPOSED = times("exposed", "step / ms", "exposed")
OUTSIDE = memory("outside", "outside_memory")
COLUMNS = [
    *STEP,
    EXPOSED,
    times("comm. / ms", "profiled step", "communication"),
    shares("hidden / %", "profiled step", "hidden_share"),
    shares("busy / %", "profiled step", "busy_share"),
    Column("compute", "profiled step", number("stretch"), "stretch"),
    memory("peak", "peak_memory"),
]
"""Those of data parallelism."""


def contender_table(
    kind: Kind, table: DataFrame, rows: DataFrame, columns: Sequence[Column], names: Collection[str] | None = None
) -> Table | None:
    """Contenders cell by cell, those that could not be measured with their reason; None where there are none.

    Args:
        kind: the experiment.
        table: its rows.
        rows: of `contenders`.
        columns: of which those that say nothing of any of them are left out.
        names: which of them to show, besides the reader's own; None: all.
    """
    lost = compared(kind, table)
    lost = described(kind, lost[(lost["metric"] == "step") & (lost["status"] != "ok")])
    both = rows.assign(message="") if not len(lost) else pandas.concat([rows.assign(message=""), lost])
    if not len(both):
        return None
    shown = described(kind, both)
    if names is not None:
        shown = shown[shown["contender"].isin(names) | (shown["family"] == OWN)]
    columns = [column for column in columns if shown[column.needs].notna().any()]
    body: list[list[str]] = []
    for name, cell in shown.groupby("cell", sort=False):
        measured = select(rows, cell=name)
        header = marked(measured.iloc[0]) if len(measured) else str(name)
        floor = measured["floor"].dropna() if names is not None else Series()
        body.append([f"{header}; floor {fixed(floor.iloc[0])} ms" if len(floor) else header])
        for _, row in cell.iterrows():
            why = f"{NOT_MEASURED}: {row['message'].removeprefix('not timed: ')}"
            texts = [why] * max(len(columns), 1) if row["message"] else [column.text(row) for column in columns]
            body.append([row["title"], *texts])
    groups = [("", 1), *((group, len(list(same))) for group, same in groupby(columns, lambda column: column.group))]
    return Table(["", *([column.title for column in columns] or [""])], body, groups=groups if columns else [])


def missing(table: DataFrame) -> str:
    """Why there is nothing to show."""
    lost = select(table, metric=WHOLE_CELL)
    return reason(lost.iloc[:1]) if len(lost) else "not measured: not run"


def setting(kind: Kind, table: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """What all contenders have in common, and in which cells what is measured tells less."""
    first = rows.iloc[0]
    skipped = select(compared(kind, table), metric="device_busy", status="skipped")
    return {
        "gpu": bool(first["gpu"]),
        "each": "GPU" if first["gpu"] else "process",
        "backend": BACKENDS[backend_of(first)],
        "size": first["label"],
        "context": int(first["context"]),
        "batch": int(first["batch_size"]),
        "rounds": int(first["rounds"]),
        "steps": int(first["steps"]),
        "warmup": int(first["warmup"]),
        "n": int(rows["n"].max()),
        "wide": int(rows["wide"].sum()),
        "wide_spread": WIDE_SPREAD,
        "bf16": bool((rows["precision"] == "bf16").any()),
        "compiled": "compiled" in rows and bool(rows["compiled"].any()),
        "negative": bool((rows["exposed"] < 0).any()),
        "unsteady": unsteady_cells(rows),
        "unsteady_from": UNSTEADY,
        "profiled": bool(rows["timeline_length"].notna().any()),
        "not_profiled": skipped["message"].iloc[0] if len(skipped) else "",
        "host_bound": host_bound(rows),
        "no_parts": bool((~rows["add_up"]).any()),
        "add_up": ADD_UP,
        "own": names_in(rows, OWN),
    }


def host_bound(rows: DataFrame) -> dict[str, Any] | None:
    """The cells whose pace the host sets, for what share of a step a device works in them, and whether all are such."""
    cells = rows.drop_duplicates("cell")
    found = cells[cells["host_bound"].astype(bool)]
    if not len(found):
        return None
    busy = (float(found["busy"].min()), float(found["busy"].max()))
    return {"cells": list(found["cell"]), "busy": busy, "all": len(found) == len(cells)}


def extremes(rows: DataFrame, column: str) -> dict[str, tuple[float, str]] | None:
    """The least and the most of a column with the cell of each, or None where it was never measured."""
    found = rows[rows[column].notna()]
    if not len(found):
        return None
    ordered = found.sort_values(column, kind="stable")
    ends = {"least": ordered.iloc[0], "most": ordered.iloc[-1]}
    return {end: (float(row[column]), str(row["cell"])) for end, row in ends.items()}


def covered(cell: DataFrame, names: Mapping[str, str]) -> dict[str, Any] | None:
    """What the drawn timelines of a cell show, in words: of each kind of communication, its ms and the hidden share."""
    shown = cell[cell["communication"] > 0]
    if not len(shown):
        return None
    kept = ["title", *names, *names.values()]
    return {"cell": shown["cell"].iloc[0], "shares": shown[kept].to_dict("records")}
