"""Self-checks of activation checkpointing."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.sizes import parse_size
from scripts.checks import Case, Evidence, check
from scripts.views.cells import cells, name_cell
from scripts.views.closed_forms import step_of
from scripts.views.data import PHASES, select
from scripts.views.units import BYTE

PEAKS = [f"peak_{phase}" for phase in PHASES]
MOMENT_TOLERANCE = 0.01
"""Of one moment's memory in two counts: libraries' workspaces, and the allocator's rounding."""


@check("{n} cells, to the byte")
def saved_is_the_closed_form(checkpointing: DataFrame) -> Evidence:
    """What a checkpointed step saves between its passes is the closed form."""
    for _, row in select(checkpointing, metric="saved_for_backward").iterrows():
        expected = step_of(row).saved_for_backward / MIB
        found = f"{row['mean']:.3f} MiB, expected {expected:.3f}"
        yield Case(name_cell(row), abs(row["mean"] - expected) > BYTE, found)


@check("{n} moments within {MOMENT_TOLERANCE:.1%}", "peak memory is counted on GPUs only")
def moments_agree(checkpointing: DataFrame) -> Evidence:
    """A checkpointed step's memory at its peak and between its parts adds up.

    The step's peak is its highest phase's, and before the backward pass there is also what was saved for it.
    """
    for row, rows in cells(checkpointing, Checkpointing, "peak_memory"):
        at = select(rows, status="ok").set_index("metric")["mean"]
        if not {*PEAKS, "memory_before_step", "memory_before_backward", "saved_for_backward"} <= set(at.index):
            continue
        for what, measured, expected in (
            ("at the peak", row["mean"], at[PEAKS].max()),
            ("before backward", at["memory_before_backward"], at["memory_before_step"] + at["saved_for_backward"]),
            ("before the step", at["memory_before_step"], step_of(row).between_steps / MIB),
        ):
            wrong = abs(measured / expected - 1) > MOMENT_TOLERANCE
            yield Case(name_cell(row), wrong, f"{what} {measured:.0f} MiB, not {expected:.0f} MiB")


@check("{n} cells")
def blocks_run_again(checkpointing: DataFrame) -> Evidence:
    """Checkpointed blocks run twice in a step, others once."""
    for _, row in select(checkpointing, metric="block_calls").iterrows():
        layers = parse_size(row["size"]).num_layers
        found = f"{row['mean']:.0f} calls of {layers} blocks"
        yield Case(name_cell(row), row["mean"] != (2 if row["segment"] else 1) * layers, found)
