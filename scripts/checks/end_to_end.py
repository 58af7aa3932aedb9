"""Self-checks of the whole model's training steps."""

import itertools

from pandas import DataFrame

from cs336_systems.accounting.transformer import state_bytes
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import size_name
from scripts.checks import TOLERANCE, Case, Check, Evidence, between_cells, check, under_the_roofline, within_memory
from scripts.views.cells import name_cell, side_by_side
from scripts.views.closed_forms import flops_of, model_of
from scripts.views.data import PHASES, measured_gpu, one, select, size_order, statistic
from scripts.views.steps import step_table

CELL = [name for name in parameters(EndToEnd) if name != "mode"]
MOST_EXCUSED = 0.6
"""The largest relative difference of phases that the spread of a step can excuse."""
SLOWED = 4
"""How many times as long a CPU may take in one process as in another, for what else it does."""
BUSIEST = 1.05
"""Share of the median step for which the device may seem to work: its time is that of another step."""
SLOWEST_INFERENCE = 1 + between_cells(0.0)
"""How many times as long as a forward pass with graph and loss inference may take."""


def phases_add_up(end_to_end: DataFrame) -> Check:
    """Check that the forward pass by itself plus the backward phase equals both in the training step.

    Other programs may slow all of a CPU's steps: there the two need only be of one order of magnitude. The forward
    pass's share of both does not depend on that, and must agree on either.
    """
    on_gpu = bool(measured_gpu({"": end_to_end}))
    tolerance = TOLERANCE["GPU" if on_gpu else "CPU"]
    cells = phases_apart_and_together(end_to_end)
    # The host is not equally fast in every process.
    hosts = select(step_table(end_to_end), mode="train_step").set_index(CELL)["host_bound"].reindex(cells.index)
    limit = f"within {tolerance:.0%}, or p80 - p20 of the step up to {MOST_EXCUSED:.0%}"
    if not on_gpu:
        limit = f"within {SLOWED} times p80 / p20 of the step"
    others = f"; {hosts.sum()} host-bound cells left out" if hosts.any() else ""

    @check(f"{{n}} cells {limit}; largest difference {{most:.1%}}{others}")
    def agree() -> Evidence:
        """Forward + backward, each from its own run, agree with the same two phases of the training step."""
        for _, row in cells[~hosts.astype(bool)].reset_index().assign(mode="train_step").iterrows():
            apart = row["forward"] + row["backward"]
            together = row["whole"] - row["optimizer"]
            error = abs(apart - together)
            yield error / together
            # A disturbed step excuses a difference of what most of its samples differ by, up to a limit.
            excused = max(tolerance * together, min(row["slow"] - row["whole"], MOST_EXCUSED * together))
            disturbed = row["slow"] / row["whole"]
            share = row["own forward"] / (row["own forward"] + row["backward"])
            expected = row["step forward"] / together
            if error > excused if on_gpu else max(apart / together, together / apart) > SLOWED * disturbed:
                yield f"{name_cell(row)}: {apart:.2f} ms against {together:.2f} ms"
            elif abs(share - expected) > tolerance * disturbed * expected:
                yield f"{name_cell(row)}: forward {share:.0%} of both, in the step {expected:.0%}"

    return agree()


def phases_apart_and_together(table: DataFrame) -> DataFrame:
    """One row per cell whose passes were also timed by themselves, ms.

    `forward` and `backward` are each from the shortest step that has them, `own forward` is next to that `backward`; of
    the training step there are `step forward`, `optimizer`, `whole` and, if it is disturbed, `slow`. `label` names the
    size.
    """
    # The 20th percentile: what disturbs a step only ever adds to its time.
    quick, slow = (side_by_side(table, EndToEnd, column).unstack("mode") for column in ("p20", "p80"))
    wanted = {
        "forward": ("forward", "forward"),
        "backward": ("backward", "forward_backward"),
        "own forward": ("forward", "forward_backward"),
        "step forward": ("forward", "train_step"),
        "optimizer": ("optimizer", "train_step"),
        "whole": ("step", "train_step"),
    }
    found = DataFrame({name: quick[key] for name, key in wanted.items() if key in quick}, index=quick.index)
    found["slow"] = slow.get(("step", "train_step"))
    found["label"] = [size_name(size) for size in found.index.get_level_values("size")]
    return found.reindex(columns=[*wanted, "slow", "label"]).dropna()


@check("{n} pairs of neighbouring sizes, p20 against p80")
def larger_sizes_take_longer(end_to_end: DataFrame) -> Evidence:
    """In fp32, at equal context, a larger model never has the shorter forward pass."""
    plain = select(end_to_end, compiled=False, attention="plain", cold_start=False)
    steps = select(plain, metric="forward", mode="train_step", precision="fp32")
    for context, group in steps[steps["warmup"] == steps["warmup"].max()].groupby("context"):
        for small, large in itertools.pairwise(size_order(group)):
            # On a disturbed machine neighbouring sizes may overlap; quantiles leave out what disturbs few steps.
            fast, slow = statistic(group, "p20", size=small), statistic(group, "p80", size=large)
            if fast is None or slow is None:
                continue
            yield Case(f"context {context}", fast >= slow, f"{small} p20 {fast:.2f} ms, {large} p80 {slow:.2f} ms")


def busy_cells(end_to_end: DataFrame) -> str:
    """The summary of a check of the cells whose device's time was measured, each of which has several phases."""
    return f"{step_table(end_to_end)['device_busy'].notna().sum()} cells; {{most:.1%}} at most, allowed {{BUSIEST:.0%}}"


@check(busy_cells, "busy time is measured on GPUs only")
def device_is_not_busier_than_the_step_is_long(end_to_end: DataFrame) -> Evidence:
    """In no phase does the device work for longer than the phase takes by the host's clock."""
    steps = step_table(end_to_end)
    for phase in PHASES:
        for _, step in steps[steps[f"{phase}_busy"].notna()].iterrows():
            share = step[f"{phase}_busy"] / step[phase]
            yield Case(name_cell(step), share > BUSIEST, f"{phase} {share:.0%} busy", share)


@check(
    "{n} cells; {most:.2f} times as long at most, allowed {SLOWEST_INFERENCE:.2f}",
    "no such cell was measured on a GPU",
)
def inference_is_no_slower(end_to_end: DataFrame) -> Evidence:
    """In device-bound steps, inference is no slower than the forward pass with graph and loss."""
    steps = step_table(end_to_end)
    steps = steps[steps["busy"].notna() & ~steps["host_bound"]]
    for _, inferred in select(steps, mode="inference").iterrows():
        trained = one(steps, mode="train_step", **{name: inferred[name] for name in CELL})
        if trained is not None:
            ratio = inferred["step"] / trained["forward"]
            yield Case(name_cell(inferred), ratio > SLOWEST_INFERENCE, f"{ratio:.2f} times as long", ratio)


def compiled_cells(end_to_end: DataFrame) -> str:
    """The summary of a check of compiled and eager cells."""
    compiled = select(end_to_end, metric="compiled_graphs")["compiled"]
    return f"{compiled.sum()} compiled and {(~compiled).sum()} eager cells"


@check(compiled_cells, "nothing compiled was measured")
def compiled_is_compiled(end_to_end: DataFrame) -> Evidence:
    """Compiled cells ran captured graphs, eager cells none."""
    for _, row in select(end_to_end, metric="compiled_graphs").iterrows():
        yield int(row["compiled"])
        if (row["mean"] > 0) != row["compiled"]:
            yield f"{name_cell(row)}: {row['mean']:.0f} graphs"


@check("{n} cells")
def precision_is_what_it_says(end_to_end: DataFrame) -> Evidence:
    """bf16 cells computed in bf16, fp32 cells in fp32 with TF32 off (probed by a multiplication)."""
    for _, row in select(end_to_end, metric="logits_dtype").iterrows():
        wrong = row["value"] != {"bf16": "bfloat16", "fp32": "float32"}[row["precision"]] or row["tf32"]
        yield Case(name_cell(row), wrong, f"{row['value']}{', TF32 on' if row['tf32'] else ''}")


@check("{n} timings; the closest reaches {most:.0%}")
def nothing_beats_the_roofline(end_to_end: DataFrame) -> Evidence:
    """No step is faster than its matrix multiplies at the data sheet's dense peak."""
    steps = select(end_to_end, metric="step")
    yield from under_the_roofline(measured_gpu({"": steps}), steps, name_cell, lambda row: flops_of(row, row["mode"]))


@check("{n} cells", "peak memory is counted on GPUs only")
def memory_holds_the_state(end_to_end: DataFrame) -> Evidence:
    """Peak memory is between the closed form of weights, gradients and moments and the device's memory."""
    for _, row in select(end_to_end, metric="peak_memory").iterrows():
        least = state_bytes(row["mode"], *model_of(row))
        yield within_memory(row, name_cell(row), least)
