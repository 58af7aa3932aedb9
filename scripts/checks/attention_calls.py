"""Self-checks of attention calls, which may be host-bound if they are short, and of their replays from a CUDA graph."""

from collections.abc import Mapping

from pandas import DataFrame, Series, isna

from cs336_systems.compare.speed import host_bound, needed_ms
from cs336_systems.experiments.flash import Flash, contender_of
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Cases, check, name_row
from scripts.views.attention_calls import PASSES
from scripts.views.attention_times import timed_calls, with_host
from scripts.views.data import measured_gpu, select

HOST_SCATTER = 0.25
"""Share of a call's host cost by which it may take less time than its parts, which are also host-bound."""
NOT_APPLICABLE = "the two are timed independently on GPUs only"


def cells(tables: Mapping[str, DataFrame]) -> DataFrame:
    """The cells of `flash`, as `calls` returns them."""
    return calls(tables["flash"])


def calls(table: DataFrame) -> DataFrame:
    """The calls on a GPU whose passes were all timed; long ones count as `device_bound`."""
    timed = timed_calls(table if measured_gpu({"": table}) else table.iloc[:0])
    cells = with_host(timed.dropna(subset=PASSES))
    return cells.assign(device_bound=cells["forward_backward"] >= needed_ms(cells["host"]))


def device_bound_rows(table: DataFrame) -> DataFrame:
    """The rows of the cells that are device-bound because they are long."""
    cells = calls(table)
    return table.merge(cells.loc[cells["device_bound"], parameters(Flash)])


@check("{n} cell{s}, {total:.0f} host-bound", NOT_APPLICABLE)
def phases_add_up(cells: DataFrame) -> Cases:
    """Attention's forward and backward, timed separately, add up to both in one call within {TOLERANCE[GPU]:.0%}; short
    calls may also differ by their host cost.

    On a CPU, the sum of both is recorded.
    """
    for _, row in cells.iterrows():
        parts, whole = row["forward"] + row["backward"], row["forward_backward"]
        detail = f"{parts:.3f} ms, in one call {whole:.3f} ms"
        host = float(not row["device_bound"] and waits(row))
        yield Case(name_row(Flash.name, row), not adds_up(row), detail, host)


@check("{n} cell{s}", "kernels are recorded on GPUs only")
def kernels_are_its_own(flash: DataFrame) -> Cases:
    """Each attention implementation launched one of its own kernels."""
    for _, row in select(flash, metric="launches").iterrows():
        wrong = contender_of(row["implementation"]).kernel not in row["kernels"].lower()
        yield Case(name_row(Flash.name, row), wrong, "none of its own kernels")


def waits(row: Series) -> bool:
    """Whether the call is host-bound, according to its replay or its host cost: then its passes are, too."""
    call = row["forward_backward"]
    return bool(host_bound(call, row["graph"]) or host_bound(call, host=row["host"]))


def adds_up(row: Series) -> bool:
    """Whether both passes in one call take about as long as their parts, or differ by what the host's share and scatter
    explain.
    """
    parts, whole = row["forward"] + row["backward"], row["forward_backward"]
    explained = not row["device_bound"] and (isna(row["graph"]) or waits(row))
    host = row["host"] if explained else 0.0
    least, most = parts - HOST_SCATTER * host, parts + host
    return bool((1 - TOLERANCE["GPU"]) * least <= whole <= most / (1 - TOLERANCE["GPU"]))
