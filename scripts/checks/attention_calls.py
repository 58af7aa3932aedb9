"""Self-checks of attention calls, of which short ones may be host-bound, and of their replays from a CUDA graph."""

from collections.abc import Mapping

from pandas import DataFrame, Series, isna

from cs336_systems.compare.speed import host_bound, needed_ms
from cs336_systems.experiments.flash import Flash, contender_of
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Evidence, check, name_row
from scripts.views.attention_calls import PASSES
from scripts.views.attention_times import timed_calls, with_host
from scripts.views.data import measured_gpu, select

HOST_SCATTER = 0.25
"""Of what a call costs the host: by so much it may take less than its parts, each of which is host-bound too."""
NOT_APPLICABLE = "timed independently on GPUs only"


def cells(tables: Mapping[str, DataFrame]) -> DataFrame:
    """The cells of `flash`, as `calls` gives them."""
    return calls(tables["flash"])


def calls(table: DataFrame) -> DataFrame:
    """The calls of a GPU whose passes were all timed; long ones are `device_bound`, whatever else they show."""
    timed = timed_calls(table if measured_gpu({"": table}) else table.iloc[:0])
    cells = with_host(timed.dropna(subset=PASSES))
    return cells.assign(device_bound=cells["forward_backward"] >= needed_ms(cells["host"]))


def device_bound_rows(table: DataFrame) -> DataFrame:
    """The rows of the cells that are device-bound for that reason."""
    cells = calls(table)
    return table.merge(cells.loc[cells["device_bound"], parameters(Flash)])


@check("{n} cells, of which {total:.0f} are host-bound", NOT_APPLICABLE)
def phases_add_up(cells: DataFrame) -> Evidence:
    """Attention's forward + backward, timed apart, agree with both in one call within {TOLERANCE[GPU]:.0%}, or in short
    calls differ by no more than what the call costs the host explains.

    By a CPU's clock, it is the sum of both that is recorded.
    """
    for _, row in cells.iterrows():
        parts, whole = row["forward"] + row["backward"], row["forward_backward"]
        found = f"{parts:.3f} ms, in one call {whole:.3f} ms"
        host = float(not row["device_bound"] and waits(row))
        yield Case(name_row(Flash.name, row), not adds_up(row), found, host)


@check("{n} cells", "seen on GPUs only")
def kernels_are_its_own(flash: DataFrame) -> Evidence:
    """Each attention implementation launched a kernel that it is known by."""
    for _, row in select(flash, metric="launches").iterrows():
        wrong = contender_of(row["implementation"]).kernel not in row["kernels"].lower()
        yield Case(name_row(Flash.name, row), wrong, "no kernel of its own")


def waits(row: Series) -> bool:
    """Whether the call is host-bound by its replay, or by what it costs the host: its passes then are, in any case."""
    call = row["forward_backward"]
    return bool(host_bound(call, row["graph"]) or host_bound(call, host=row["host"]))


def adds_up(row: Series) -> bool:
    """Whether both passes in one call take about what their parts do, or what the host's shares and scatter explain."""
    parts, whole = row["forward"] + row["backward"], row["forward_backward"]
    explained = not row["device_bound"] and (isna(row["graph"]) or waits(row))
    host = row["host"] if explained else 0.0
    least, most = parts - HOST_SCATTER * host, parts + host
    return bool((1 - TOLERANCE["GPU"]) * least <= whole <= most / (1 - TOLERANCE["GPU"]))
