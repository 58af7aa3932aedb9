"""Measured data-parallel steps, one row per contender, and what each exposes: what figures and answers share."""

from typing import Any

import pandas
from numpy import array, float64, full_like, median, nan, percentile
from numpy.typing import NDArray
from pandas import DataFrame, Series

from cs336_systems.experiments.data_parallel import CONTENDERS, FLOOR, DataParallelTraining
from cs336_systems.measure.measurement import parse_samples
from cs336_systems.measure.record import parameters
from scripts.views.communication import STATISTICS, WIDE_SPREAD
from scripts.views.data import PRECISIONS, select, size_order

WRAPPERS = {declared.name: declared.title for declared in CONTENDERS}
"""What readers call the contenders, in the order of tables."""
PYTORCH = list(dict.fromkeys(declared.name for declared in CONTENDERS if declared.foreign))
UNSTEADY = 0.5
"""Relative difference of the floor's medians between rounds from which on nothing is said of what is beyond it."""
TRIED = ["grouped", "small_last", "priority", "bf16_wire", "optimizer_overlap"]
BEYOND_FLOOR = ["floor", "exposed", "exposed_least", "exposed_most", "beyond_p20", "beyond_p80"]
BEYOND_FLOOR += ["stretch", "longer", "stretched", "uncovered", "idle"]
"""The columns of `contenders` that compare a contender with the floor of its cell."""
CELL = ["size", "context", "processes", "compiled", "precision"]
"""What tells apart the cells that the report compares."""
PHASES = ["forward", "backward", "synchronization", "optimizer"]
"""Of a step in which the device is synchronized after each of them."""
WORK = ["compute", "communication", "optimizer"]
"""The kinds of work in a timeline."""
KINDS = {
    "naive": ["naive"],
    "flat": ["flat"],
    "overlapped": ["overlapped"],
    "bucketed": ["bucketed"],
    "peer memory": ["peer_memory"],
    "PyTorch's,\ndefault": ["ddp"],
    "PyTorch's,\nbest": PYTORCH,
}
"""The wrappers of which a picture shows the fastest setting."""


def compared(table: DataFrame) -> DataFrame:
    """The rows of the largest model at its longest context; of a cell measured twice, those with all that was tried."""
    if not len(table):
        return table
    table = select(table, size=size_order(table)[-1])
    table = select(table, context=table["context"].max())
    return table[table["tried"] == table.groupby(CELL)["tried"].transform("max")]


def contenders(table: DataFrame) -> DataFrame:
    """One row per measured contender of each cell that `compared` leaves, fewest processes, eager and fp32 first.

    Columns: the parameters, `label`, `wrapper`, `bucket_mb`, `title`, `cell` and `gpu`; STATISTICS of the step, ms;
    the medians of the other metrics, as measured, NaN where they were not; `exposed`, `exposed_least` and
    `exposed_most`, ms: the median, least and most over the rounds of its median step less the floor's, NaN where the
    floor is unsteady; `beyond_p20` and
    `beyond_p80`, ms: percentiles of its steps less the floor's median in the same round, or over all where it is
    unsteady; `wide`, whether its steps are
    more than WIDE_SPREAD apart; `synchronization_share`, that of the step whose phases were timed. From the profiled
    step: `hidden_share` of its communication, `busy_share`, `stretch` (its compute over the floor's), and in ms beyond
    the floor `longer`, which is `stretched` (compute) + `uncovered` (communication beside no compute) + `idle`.
    """
    table = compared(table)
    keys = [*parameters(DataParallelTraining), "label", "wrapper", "bucket_mb"]
    steps = select(table, metric="step", status="ok").set_index(keys)
    numeric = table[table["median"].notna() & (table["metric"] != "step") & (table["kind"] == "")]
    wide = numeric.pivot(index=keys, columns="metric", values="median")
    wide = wide.reindex(index=steps.index, columns=[name for name in DataParallelTraining.metrics if name != "step"])
    # The communication that a step exposes is computed from steps of the same round, below.
    wide = steps[[*STATISTICS, "samples", "mean", "gpu"]].join(wide).reset_index()
    wide["title"] = [title(row) for _, row in wide.iterrows()]
    wide["cell"] = [cell_name(row) for _, row in wide.iterrows()]
    wide["wide"] = (wide["p80"] - wide["p20"]) / wide["median"] > WIDE_SPREAD
    wide = beside_the_floor(wide)
    wide["hidden_share"] = wide["hidden"] / wide["communication"].replace(0, nan)
    wide["busy_share"] = wide["device_busy"] / wide["timeline_length"]
    wide["synchronization_share"] = wide["synchronization"] / wide[PHASES].sum(axis=1, skipna=False)
    order = wide.assign(
        rank=wide["wrapper"].map(list(WRAPPERS).index),
        precision=wide["precision"].map(PRECISIONS.index),
        bucket=pandas.to_numeric(wide["bucket_mb"]),
    )
    return wide.loc[order.sort_values([*CELL, "rank", "bucket"]).index]


def backend_of(row: Series) -> str:
    """What a contender communicates with, as `all_reduce` names it."""
    return "nccl" if row["gpu"] else "gloo"


def title(row: Series) -> str:
    """A contender in words; what was tried has one bucket size."""
    wrapper, size = row["wrapper"], row["bucket_mb"]
    shown = f", {size} {'MiB' if wrapper in PYTORCH else 'MB'}" if size and wrapper not in TRIED else ""
    return WRAPPERS[wrapper] + shown


def cell_name(row: Series) -> str:
    """A cell in words, as in "2 GPUs, bf16, compiled"."""
    return f"{row['processes']} {'GPUs' if row['gpu'] else 'processes'}, {setting_name(row)}"


def setting_name(row: Series) -> str:
    """What cells with the same number of processes differ in, in words."""
    return row["precision"] + (", compiled" if row["compiled"] else "")


def beside_the_floor(rows: DataFrame) -> DataFrame:
    """Add what each contender takes beyond the floor of its cell: NaN for the floor, and where there is none."""
    added: list[dict[str, Any]] = []
    floors = {tuple(row[CELL]): row for _, row in select(rows, wrapper=FLOOR).iterrows()}
    for _, row in rows.iterrows():
        floor = floors.get(tuple(row[CELL]))
        if floor is None or row["wrapper"] == FLOOR:
            added.append({})
            continue
        rounds_of_floor = median(samples_by_round(floor), axis=1)
        exposed = median(samples_by_round(row), axis=1) - rounds_of_floor
        beyond = samples_by_round(row) - rounds_of_floor[:, None]
        if not steady(rounds_of_floor):
            exposed, beyond = full_like(exposed, nan), samples_by_round(row) - floor["median"]
        p20, p80 = percentile(beyond, [20, 80])
        longer = row["timeline_length"] - floor["timeline_length"]
        stretched = row["compute"] - floor["compute"]
        uncovered = row["communication"] - row["hidden"]
        added.append(
            {
                "floor": floor["median"],
                "exposed": median(exposed),
                "exposed_least": exposed.min(),
                "exposed_most": exposed.max(),
                "beyond_p20": p20,
                "beyond_p80": p80,
                "stretch": row["compute"] / floor["compute"],
                "longer": longer,
                "stretched": stretched,
                "uncovered": uncovered,
                "idle": longer - stretched - uncovered,
            }
        )
    return rows.join(DataFrame(added, index=rows.index, columns=BEYOND_FLOOR, dtype=float))


def steady(rounds: NDArray[float64]) -> bool:
    """Whether the medians of a contender's rounds are close enough together."""
    return bool(rounds.max() - rounds.min() <= UNSTEADY * rounds.min())


def unsteady_cells(rows: DataFrame) -> list[str]:
    """The cells whose floor is not steady."""
    floors = select(rows, wrapper=FLOOR)
    return [row["cell"] for _, row in floors.iterrows() if not steady(median(samples_by_round(row), axis=1))]


def samples_by_round(row: Series) -> NDArray[float64]:
    """The steps of a contender, ms, a row per round."""
    return array(parse_samples(row["samples"]) or [row["mean"]]).reshape(-1, row["steps"])


def fastest(rows: DataFrame, *wrappers: str) -> Series | None:
    """The contender with the shortest median step among some wrappers, or None where none of them was measured."""
    found = rows[rows["wrapper"].isin(wrappers)]
    return None if not len(found) else found.sort_values("median", kind="stable").iloc[0]


def shown_in_timelines(cell: DataFrame) -> list[Series]:
    """Of a cell's contenders, the fastest of each kind; PyTorch's at its best only."""
    return [row for kind in KINDS.values() if kind != ["ddp"] and (row := fastest(cell, *kind)) is not None]


def cells_of(rows: DataFrame) -> list[DataFrame]:
    """The contenders of each cell, in order."""
    return [cell for _, cell in rows.groupby("cell", sort=False)]


def traced_cell(table: DataFrame) -> DataFrame:
    """The contenders of the cell whose timelines are drawn, or no rows where none of their steps was profiled.

    Fewest processes, bf16 before fp32 (communication weighs more), compiled before eager (the device sets the pace).
    """
    rows = contenders(table)
    rows = rows[rows["timeline_length"].notna() & (rows["wrapper"] != FLOOR)]
    if not len(rows):
        return rows
    rows = select(rows, processes=rows["processes"].min())
    rows = select(rows, precision=max(rows["precision"], key=PRECISIONS.index))
    return select(rows, compiled=rows["compiled"].max())


def timeline(table: DataFrame, row: Series) -> dict[str, list[float]]:
    """The share of each part of a contender's profiled step in which work of each kind ran."""
    cell = {name: row[name] for name in [*parameters(DataParallelTraining), "wrapper", "bucket_mb"]}
    found = select(table, metric="timeline", status="ok", **cell)
    return dict(zip(found["kind"], map(parse_samples, found["samples"]), strict=True))
