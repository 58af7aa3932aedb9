"""Self-checks of activation checkpointing."""

from pandas import DataFrame

from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import parse_size
from scripts.checks import TOLERANCE, Case, Evidence, NotApplicable, check
from scripts.views.cells import in_words, name_cell, side_by_side
from scripts.views.closed_forms import step_of
from scripts.views.data import PHASES, measured_gpu, select, statistic
from scripts.views.units import BYTE

PEAK_TOLERANCE = 0.03
"""Of the closed form: it leaves out workspaces, the allocator's rounding, and what kernels need while they run."""

MOMENT_TOLERANCE = 0.01
"""Of one moment's memory in two counts: libraries' workspaces, and the allocator's rounding."""


@check("{n} cells, to the byte")
def saved_is_the_closed_form(checkpointing: DataFrame) -> Evidence:
    """What a step saves between its passes is the closed form."""
    for _, row in select(checkpointing, metric="saved_for_backward").iterrows():
        expected = step_of(row).saved_for_backward / MIB
        found = f"{row['mean']:.3f} MiB, expected {expected:.3f}"
        yield Case(name_cell(row), abs(row["mean"] - expected) > BYTE, found)


@check("{n} cells within {PEAK_TOLERANCE:.0%}; largest difference {most:.1%}", "peak memory is counted on GPUs only")
def peak_is_the_closed_form(checkpointing: DataFrame) -> Evidence:
    """The peak memory of a checkpointed step is that of the closed form."""
    for _, row in select(checkpointing, metric="peak_memory").iterrows():
        error = row["mean"] / (step_of(row).peak / MIB) - 1
        found = f"{row['mean']:.0f} MiB, {error:+.1%} from the closed form"
        yield Case(name_cell(row), abs(error) > PEAK_TOLERANCE, found, abs(error))


@check("{n} cells within {MOMENT_TOLERANCE:.1%}", "peak memory is counted on GPUs only")
def moments_agree(checkpointing: DataFrame) -> Evidence:
    """A checkpointed step's memory at its peak and between its parts adds up.

    The step's peak is its highest phase's, and before the backward pass there is also what was saved for it.
    """
    columns = ["peak_memory", *(f"peak_{phase}" for phase in PHASES), "memory_before_step", "memory_before_backward"]
    found = side_by_side(checkpointing, Checkpointing).reindex(columns=[*columns, "saved_for_backward"]).dropna()
    steps = select(checkpointing, metric="peak_memory")
    states = {tuple(row[parameters(Checkpointing)]): step_of(row).between_steps / MIB for _, row in steps.iterrows()}
    for cell, row in zip(found.index, found.to_dict("records"), strict=True):
        yield 1
        phases = max(row[f"peak_{phase}"] for phase in PHASES)
        between = row["memory_before_step"] + row["saved_for_backward"]
        for what, measured, expected in (
            ("the peak", row["peak_memory"], phases),
            ("before the backward pass", row["memory_before_backward"], between),
            ("before the step", row["memory_before_step"], states[cell]),
        ):
            if abs(measured / expected - 1) > MOMENT_TOLERANCE:
                yield f"{in_words(Checkpointing, cell)}: {what} {measured:.0f} MiB, not {expected:.0f} MiB"


@check("{n} cells")
def blocks_run_again(checkpointing: DataFrame) -> Evidence:
    """Checkpointed blocks run twice in a step, others once."""
    for _, row in select(checkpointing, metric="block_calls").iterrows():
        layers = parse_size(row["size"]).num_layers
        found = f"{row['mean']:.0f} calls of {layers} blocks"
        yield Case(name_cell(row), row["mean"] != (2 if row["segment"] else 1) * layers, found)


@check("{n} cells within {TOLERANCE[GPU]:.0%}")
def recomputation_takes_time(checkpointing: DataFrame) -> Evidence:
    """Checkpointing makes a step longer, by no more than a forward pass."""
    if not measured_gpu({"": checkpointing}):
        raise NotApplicable("judged on GPUs only: so few steps on a CPU are disturbed too much")
    tolerance = TOLERANCE["GPU"]
    steps = select(checkpointing, metric="step")
    for _, row in steps[steps["segment"] > 0].iterrows():
        # The 20th percentile: what disturbs a step only ever adds to its time.
        without = {name: row[name] for name in parameters(Checkpointing)} | {"segment": 0}
        step, forward = (statistic(checkpointing, "p20", metric=name, **without) for name in ("step", "forward"))
        if step is None or forward is None:
            continue
        wrong = not (1 - tolerance) * step <= row["p20"] <= (1 + tolerance) * (step + forward)
        yield Case(name_cell(row), wrong, f"{row['p20']:.2f} ms against {step:.2f} + {forward:.2f} ms")
