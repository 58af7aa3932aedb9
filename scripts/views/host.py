"""The host's cost of a training step: launches and their host time."""

from pandas import DataFrame

from cs336_systems.experiments.data_parallel import BASELINE, DataParallelTraining
from scripts.rendering.answer import least_and_most
from scripts.rendering.grid import crossed
from scripts.rendering.markup import Table
from scripts.views.comparison import compared, described
from scripts.views.data import select, size_order
from scripts.views.steps import steady, step_table

COSTS = {"launches": "{launches:.0f}", "ms": "{host:.2f}", "µs each": "{each:.1f}"}
"""The columns of each cell."""


def per_launch(end_to_end: DataFrame) -> DataFrame:
    """The steps of `step_table` with counted launches, and µs per launch: `host` of the step, `device` of its work.

    The device takes the same time for the same operations, so if `host` is well above `device`, the host sets the pace.
    """
    steps = steady(step_table(end_to_end))
    steps = steps[(steps["launches"] > 0) & steps["device_busy"].notna()]
    return steps.assign(
        host=1e3 * steps["step"] / steps["launches"],
        device=1e3 * steps["device_busy"] / steps["launches"],
    )


def busy_shares(data_parallel: DataFrame) -> tuple[str, tuple[float, float], tuple[float, float]] | None:
    """The largest model whose bf16 baseline was profiled eager and replayed, and the range of the device's busy shares
    in each.
    """
    rows = select(data_parallel, wrapper=BASELINE, precision="bf16", kind="")
    wide = rows.pivot_table(index=["label", "size", "compiled", "processes"], columns="metric", values="median")
    if not {"device_busy", "timeline_length"} <= set(wide):
        return None
    share = wide["device_busy"] / wide["timeline_length"]
    both = share.unstack("compiled").reindex(columns=[False, True]).dropna().reset_index()
    if not len(both):
        return None
    found = select(both, size=size_order(both)[-1])
    return str(found["label"].iloc[0]), least_and_most(found[False]), least_and_most(found[True])


def host_table(table: DataFrame) -> tuple[str, Table]:
    """The smallest model with measured host costs, and its contenders' costs, cell by cell."""
    measured = table[table["metric"].isin(["launches", "host"]) & (table["status"] == "ok")]
    if not len(measured):
        return "", Table([], [])
    rows = compared(DataParallelTraining, select(measured, size=size_order(measured)[0]))
    rows = described(DataParallelTraining, rows)
    keys = ["cell", "title"]
    costs = rows.pivot(index=keys, columns="metric", values="median").loc[rows.set_index(keys).index.unique()]
    costs["each"] = 1e3 * costs["host"] / costs["launches"]
    return rows["label"].iloc[0], crossed(costs.reset_index(), "title", "cell", COSTS)
