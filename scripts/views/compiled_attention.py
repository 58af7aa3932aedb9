"""Plain attention by itself, eager and compiled: what answers and figures share."""

from collections.abc import Sequence

from pandas import DataFrame

from cs336_systems.compare.bounds import HOST_BOUND
from cs336_systems.experiments.attention import Attention
from scripts.rendering.markup import Table, significant
from scripts.views.cells import side_by_side
from scripts.views.data import reason, select, statistic

PASSES = ("forward", "backward")


def grid_table(table: DataFrame, kinds: Sequence[bool]) -> Table:
    """One line per length and kind (compiled or not); for each pass a column per head dimension, means."""
    dimensions = sorted(set(table["d"]))
    body = []
    for sequence in sorted(set(table["sequence"])):
        for compiled in kinds:
            rows = select(table, sequence=sequence, compiled=compiled)
            cells = [(select(rows, d=d), name) for name in PASSES for d in dimensions]
            line = [str(sequence), *(["compiled" if compiled else "eager"] if len(kinds) > 1 else [])]
            body.append(line + [time(own, name) for own, name in cells])
    header = ["sequence", *([""] if len(kinds) > 1 else []), *[f"d = {d}" for d in dimensions] * len(PASSES)]
    first = len(header) - len(PASSES) * len(dimensions)
    groups = [("", first), *((f"{name} / ms", len(dimensions)) for name in PASSES)]
    return Table(header, body, text_columns=first, groups=groups)


def time(rows: DataFrame, name: str) -> str:
    """The mean time of a pass, with a star where it is host-bound."""
    mean, busy = statistic(rows, "mean", metric=name), statistic(rows, "mean", metric=f"{name}_busy")
    if mean is None:
        return reason(rows)
    return f"{significant(mean)}{'*' if busy is not None and busy < HOST_BOUND * mean else ''}"


def paired(table: DataFrame) -> DataFrame:
    """One row per shape that was measured both ways.

    Columns: the parameters; `eager` and `compiled`, medians of both passes together, ms; `gain`, their quotient;
    `host_bound`, whether either is; with `_busy` behind a name the time in which the device works, and with `_peak` the
    peak, MiB: NaN where not measured.
    """
    wanted = [*PASSES, "device_busy", "peak_memory"]
    cells = side_by_side(table, Attention, "median").reindex(columns=wanted).reset_index()
    cells["time"] = cells["forward"] + cells["backward"]
    keys = [name for name in cells.columns if name not in (*wanted, "time", "compiled")]
    halves = [
        select(cells, compiled=compiled)
        .set_index(keys)[["time", "device_busy", "peak_memory"]]
        .rename(columns={"time": name, "device_busy": f"{name}_busy", "peak_memory": f"{name}_peak"})
        for name, compiled in (("eager", False), ("compiled", True))
    ]
    pairs = halves[0].join(halves[1], how="inner").reset_index()
    pairs["gain"] = pairs["eager"] / pairs["compiled"]
    pairs["host_bound"] = [
        any(row[f"{name}_busy"] < HOST_BOUND * row[name] for name in ("eager", "compiled"))
        for _, row in pairs.iterrows()
    ]
    return pairs[pairs["gain"].notna()]
