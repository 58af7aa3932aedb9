"""Measured tables as pandas data frames, and the selections that figures and answers share."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from pandas import DataFrame, Series

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import WHOLE_CELL, parse_samples
from cs336_systems.record.rows import read_jobs, read_table, row_model
from cs336_systems.record.validation import Row
from cs336_systems.sizes import SIZES, parse_size, size_name
from scripts.rendering.markup import measured

HANDOUT_CONTEXT = 512
NOT_RUN = "not run"
PHASES = ["forward", "backward", "optimizer"]
PRECISIONS = ["fp32", "bf16"]
MODES = {
    "inference": "inference",
    "forward": "forward",
    "forward_backward": "forward + backward",
    "train_step": "training step",
}
"""The kinds of step, the most complete one last, and their names for readers."""


def load(experiment: str, path: str | Path) -> DataFrame:
    """An experiment's table, validated and typed; `label` is the readers' name of a size."""
    path = Path(path)
    return load_file(experiment, path, path.stat().st_mtime_ns).copy(deep=False)


@cache  # Figures share a process, and several of them a table.
def load_file(experiment: str, path: Path, mtime_ns: int) -> DataFrame:
    """The same for a file, cached until it is written again."""
    return frame(experiment, read_table(EXPERIMENTS[experiment], path))


@cache
def load_recorded(raw: Path) -> Mapping[str, DataFrame]:
    """All tables of a recorded machine from the folder of its jobs' CSV files, as `load` returns them; read once."""
    paths = {name: sorted((raw / name).glob("*.csv")) for name in EXPERIMENTS}
    return {name: frame(name, read_jobs(EXPERIMENTS[name], csvs)) for name, csvs in paths.items()}


def frame(experiment: str, rows: Iterable[Row]) -> DataFrame:
    """An experiment's rows as `load` returns them."""
    columns = list(row_model(EXPERIMENTS[experiment]).model_fields)
    table = DataFrame([vars(row) for row in rows], columns=columns)
    if "size" in table:
        table["label"] = [size_name(size) for size in table["size"]]
    # As objects, since columns of one type are kept together: many columns apart make each selection slow.
    return table.astype(dict.fromkeys(table.select_dtypes("string").columns, object)).copy()


def load_at_one_setting(experiment: str, path: str | Path) -> DataFrame:
    """An experiment's table, reduced to one value of each of its settings."""
    return at_one_setting(experiment, load(experiment, path))


def at_one_setting(experiment: str, table: DataFrame) -> DataFrame:
    """The rows that have the most frequent value of each parameter that the report does not compare."""
    for column in EXPERIMENTS[experiment].settings:
        if len(table):
            table = table[table[column] == table[column].mode().iloc[0]]
    return table


def select(table: DataFrame, **wanted: Any) -> DataFrame:
    """The rows with the given values in the named columns.

    Only measured rows of a metric, unless a status is named: a lost metric counts as missing.
    """
    return table.iloc[_positions(table, wanted)]


def one(table: DataFrame, **wanted: Any) -> Series | None:
    """The one row that the selection leaves, or None.

    Raises:
        ValueError: it leaves several, so the number quoted would be arbitrary.
    """
    position = _only_position(table, wanted)
    return None if position is None else table.iloc[position]


def statistic(table: DataFrame, column: str, **wanted: Any) -> float | None:
    """One statistic of the selected row, or None if it was not measured."""
    position = _only_position(table, wanted)
    value: Any = None if position is None else table[column].iat[position]
    return float(value) if measured(value) else None


def _only_position(table: DataFrame, wanted: Mapping[str, Any]) -> int | None:
    positions = _positions(table, wanted)
    if len(positions) > 1:
        raise ValueError(f"{len(positions)} rows for {dict(wanted)}; expected one")
    return int(positions[0]) if len(positions) else None


def _positions(table: DataFrame, wanted: Mapping[str, Any]) -> NDArray[numpy.intp]:
    """Where the rows are that `select` leaves: as arrays, and fewer with each column, since a report selects often."""
    if wanted.get("metric", WHOLE_CELL) != WHOLE_CELL:
        wanted = {"status": "ok", **wanted}
    positions = numpy.arange(len(table))
    for column, value in wanted.items():
        positions = positions[table[column].to_numpy()[positions] == value]
    return positions


def samples(row: Series) -> list[float]:
    """The samples of a row; its mean if it has only one."""
    return parse_samples(row["samples"]) or [float(row["mean"])]


def first(rows: DataFrame) -> Series | None:
    """The first row, if there is one."""
    return rows.iloc[0] if len(rows) else None


def last(rows: DataFrame) -> Series | None:
    """The last row, if there is one."""
    return rows.iloc[-1] if len(rows) else None


def flat(table: DataFrame) -> DataFrame:
    """The table with multi-level columns named by all levels, "level level"."""
    return table.set_axis([" ".join(map(str, column)) for column in table.columns], axis=1)


def reason(table: DataFrame, **wanted: Any) -> str:
    """Why a cell has no measurement: its status and message, or that it was not run."""
    row = one(table, metric=WHOLE_CELL, **wanted)
    if row is None:
        return not_measured(table)
    if row["status"] == "oom":
        return "not measured: out of memory"
    return f"not measured: {row['message'].removeprefix('not timed: ')}"


def not_measured(table: DataFrame) -> str:
    """Why nothing of a table, or of its missing part, was measured: it was not run, or the reason from
    `with_reasons`.
    """
    why = table.attrs.get(NOT_RUN, NOT_RUN)
    return NOT_RUN if why == NOT_RUN else f"not measured: {why}"


def size_order(table: DataFrame) -> list[str]:
    """The sizes of a table, small to large."""
    order = list(SIZES)

    def key(size: str) -> tuple[int, int]:
        shape = parse_size(size)
        return (order.index(size) if size in order else len(order), shape.d_model * shape.num_layers)

    return sorted(table["size"].unique(), key=key)


def in_order(rows: DataFrame, by: Sequence[str], **orders: Sequence[str]) -> DataFrame:
    """The rows sorted by the existing ones of some columns: sizes small to large, fp32 first, others as `orders` lists
    their values, or by value.
    """
    columns = [name for name in by if name in rows]
    known = {"precision": PRECISIONS, **({"size": size_order(rows)} if "size" in columns else {}), **orders}

    def key(column: Series) -> Series:
        return column.map(list(known[str(column.name)]).index) if column.name in known else column

    return rows.sort_values(columns, key=key, kind="stable")


def small_to_large(rows: DataFrame) -> DataFrame:
    """The rows by size, by context where they have one, and with fp32 before bf16."""
    return in_order(rows, ["size", "context", "precision"])


def largest_model(table: DataFrame, *columns: str) -> DataFrame:
    """The rows of the largest size, and then of the largest value of each of some columns."""
    if not len(table):
        return table
    table = select(table, size=size_order(table)[-1])
    for column in columns:
        table = select(table, **{column: table[column].max()})
    return table


def one_model(table: DataFrame) -> DataFrame:
    """The rows of the largest model at its longest context, in the precision that most of them have."""
    table = largest_model(table, "context")
    return select(table, precision=table["precision"].mode().iloc[0]) if len(table) else table


def reference_context(table: DataFrame) -> int | None:
    """The context at which sizes are compared: the handout's 512, otherwise the longest measured one."""
    contexts = set(table["context"])
    return HANDOUT_CONTEXT if HANDOUT_CONTEXT in contexts else max(contexts, default=None)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Their ratio, or None if either was not measured (None or NaN), or the denominator is zero."""
    quotient = numerator / denominator if measured(numerator) and measured(denominator) and denominator else None
    return quotient if measured(quotient) else None


def measured_gpu(tables: Mapping[str, DataFrame]) -> str:
    """The GPU model of the tables; empty when measured on a CPU."""
    return next((gpu for table in tables.values() for gpu in table["gpu"] if gpu), "")


def measured_machine(tables: Mapping[str, DataFrame]) -> str:
    """The machine as figures and tables name it: GPU model, or processor."""
    cpus = [cpu for table in tables.values() for cpu in table["cpu"]]
    return measured_gpu(tables) or (f"CPU ({cpus[0]})" if cpus else "no machine")
