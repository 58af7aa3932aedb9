"""Self-checks of short attention calls, which the host may pace, and of their replays from a CUDA graph."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.experiments.flash import Flash
from scripts.cells import side_by_side
from scripts.check import TOLERANCE, Check, conclude
from scripts.checks.attention import DEVICE_BOUND_MS, name_flash
from scripts.data import measured_gpu
from scripts.implementations import PASSES
from scripts.steps import HOST_BOUND

HOST_SHARES = 2
"""How many times what a call costs the host it may take longer than its parts: launching is not equally fast always."""
IMPLEMENTATION = ["implementation", "precision", "compiled_call"]
NOT_APPLICABLE = "timed independently on GPUs only"


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of short calls."""
    cells = calls(tables["flash"])
    yield replays_are_no_slower(cells)
    yield short_phases_add_up(cells)


def calls(table: DataFrame) -> DataFrame:
    """One row per cell measured on a GPU: its parameters, the medians of its passes and of the replay, and `host`, ms.

    Where the host's share was not measured, it is the most that it was at any length of the same implementation.
    """
    found = side_by_side(table if measured_gpu({"": table}) else table.iloc[:0], Flash, "median")
    cells = found.reindex(columns=[*PASSES, "graph", "host"]).dropna(subset=PASSES).reset_index()
    most = cells.groupby(IMPLEMENTATION)["host"].transform("max")
    return cells.assign(host=cells["host"].fillna(most).fillna(0) / 1e3)


def replays_are_no_slower(cells: DataFrame) -> Check:
    """Replayed from a graph, forward and backward take no longer than when they are called."""
    replayed = cells[cells["graph"].notna()]
    ratios = replayed["graph"] / replayed["forward_backward"]
    slow = replayed[ratios > 1 + TOLERANCE["GPU"]]
    complaints = [
        f"{name_flash(row)}: {row['graph']:.3f} ms, called {row['forward_backward']:.3f} ms"
        for _, row in slow.iterrows()
    ]
    summary = f"{len(replayed)} cells; {ratios.max():.2f} times as long at most" if len(replayed) else NOT_APPLICABLE
    return conclude(
        "no replay of a CUDA graph takes longer than the calls it holds", complaints, len(replayed), summary
    )


def short_phases_add_up(cells: DataFrame) -> Check:
    """Below a millisecond, too, both passes in one call take as long as each by itself, or the host says why not."""
    short = cells[cells["forward_backward"] < DEVICE_BOUND_MS]
    complaints = [
        f"{name_flash(row)}: {row['forward'] + row['backward']:.3f} ms, in one call {row['forward_backward']:.3f} ms"
        for _, row in short.iterrows()
        if not adds_up(row)
    ]
    host_bound = int((short["graph"] < HOST_BOUND * short["forward_backward"]).sum())
    check = (
        f"under {DEVICE_BOUND_MS:g} ms, attention's forward + backward agree with both in one call, or differ by no"
        " more than what the call costs the host explains"
    )
    summary = f"{len(short)} cells, of which the host paces {host_bound}" if len(short) else NOT_APPLICABLE
    return conclude(check, complaints, len(short), summary)


def adds_up(row: Series, host_shares: int = HOST_SHARES) -> bool:
    """Whether both passes in one call take no less than their parts, and no more than these and the host's shares."""
    tolerance = TOLERANCE["GPU"]
    parts, whole = row["forward"] + row["backward"], row["forward_backward"]
    device_bound = row["graph"] >= HOST_BOUND * whole
    most = parts if device_bound else parts + host_shares * row["host"]
    return bool((1 - tolerance) * parts <= whole <= (1 + tolerance) * most)
