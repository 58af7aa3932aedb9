"""Self-checks of the whole model's training steps."""

from pandas import DataFrame

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.record.rows import parameters
from scripts.checks import TOLERANCE, Case, Cases, check, name_row
from scripts.views.cells import side_by_side
from scripts.views.data import measured_gpu, select
from scripts.views.steps import step_table

CELL = [name for name in parameters(EndToEnd) if name != "mode"]
SLOWER = {"GPU": 1 + TOLERANCE["GPU"], "CPU": 4.0}
"""Largest ratio of a phase's times in two processes; a CPU also does other work."""
MOST_EXCUSED = {"GPU": 1.6, "CPU": float("inf")}
"""Largest slowdown of the phases of a disturbed step."""


@check("{n} cell{s}; at most {most:.2f} times as long", "only host-bound steps were timed with separate passes")
def phases_add_up(end_to_end: DataFrame) -> Cases:
    """Forward and backward passes, timed separately, agree with these phases of the training step.

    Host-bound cells are omitted: the host is not equally fast in every process. Other programs may slow all of a CPU's
    steps; the forward pass's share of both does not depend on that, and must always agree.
    """
    device = "GPU" if measured_gpu({"": end_to_end}) else "CPU"
    cells = phases_apart_and_together(end_to_end)
    hosts = select(step_table(end_to_end), mode="train_step").set_index(CELL)["host_bound"].reindex(cells.index)
    for _, row in cells[~hosts.astype(bool)].reset_index().assign(mode="train_step").iterrows():
        apart, together = row["forward"] + row["backward"], row["whole"] - row["optimizer"]
        factor = max(apart / together, together / apart)
        share = row["own forward"] / (row["own forward"] + row["backward"])
        expected = row["step forward"] / together
        disturbed = row["slow"] / row["whole"]
        uneven = abs(share - expected) > TOLERANCE[device] * disturbed * expected
        apart_too_far = factor > SLOWER[device] * min(disturbed, MOST_EXCUSED[device])
        detail = f"{apart:.2f} ms against {together:.2f} ms, forward {share:.0%} of both against {expected:.0%}"
        yield Case(name_row(EndToEnd.name, row), apart_too_far or uneven, detail, factor)


def phases_apart_and_together(table: DataFrame) -> DataFrame:
    """One row per cell whose passes were also timed separately, ms.

    `forward` and `backward` are each from the shortest step that has them, `own forward` is next to that `backward`; of
    the training step there are `step forward`, `optimizer`, `whole` and, if it is disturbed, `slow`.
    """
    # The 20th percentile: disturbances only add to a step's time.
    quick, slow = (side_by_side(table, EndToEnd, column).unstack("mode") for column in ("p20", "p80"))
    wanted = {
        "forward": ("forward", "forward"),
        "backward": ("backward", "forward_backward"),
        "own forward": ("forward", "forward_backward"),
        "step forward": ("forward", "train_step"),
        "optimizer": ("optimizer", "train_step"),
        "whole": ("step", "train_step"),
    }
    phases = DataFrame({name: quick[key] for name, key in wanted.items() if key in quick}, index=quick.index)
    phases["slow"] = slow.get(("step", "train_step"))
    return phases.reindex(columns=[*wanted, "slow"]).dropna()
