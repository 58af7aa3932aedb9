"""Self-checks of the whole model's training steps."""

import itertools
from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.accounting.transformer import state_bytes, step_flops
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.record import parameters
from cs336_systems.sizes import parse_size, size_name
from scripts.checks import TOLERANCE, Check, Timing, between_cells, conclude, outside, under_the_roofline
from scripts.views.cells import name_cell, side_by_side
from scripts.views.data import PHASES, measured_gpu, one, select, size_order, statistic
from scripts.views.steps import step_table

CELL = [name for name in parameters(EndToEnd) if name != "mode"]
MOST_EXCUSED = 0.6
"""The largest relative difference of phases that the spread of a step can excuse."""
SLOWED = 4
"""How many times as long a CPU may take in one process as in another, for what else it does."""
BUSIER = 0.05
"""How much longer than the median step the device may seem to work: its time is that of another step."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["end_to_end"]
    yield phases_add_up(table)
    yield larger_sizes_take_longer(table)
    yield device_is_not_busier_than_the_step_is_long(table)
    yield inference_is_no_slower(table)
    yield compiled_is_compiled(table)
    yield precision_is_what_it_says(table)
    yield nothing_beats_the_roofline(table)
    yield memory_holds_the_state(table)


def phases_add_up(table: DataFrame) -> Check:
    """The forward pass by itself plus the backward phase equals forward and backward in the training step.

    Other programs may slow all of a CPU's steps: there the two need only be of one order of magnitude. The forward
    pass's share of both does not depend on that, and must agree on either.
    """
    check = "forward + backward, each from its own run, agree with the same two phases of the training step"
    on_gpu = bool(measured_gpu({"": table}))
    tolerance = TOLERANCE["GPU" if on_gpu else "CPU"]
    cells = phases_apart_and_together(table)
    # The host is not equally fast in every process.
    hosts = select(step_table(table), mode="train_step").set_index(CELL)["host_bound"].reindex(cells.index)
    complaints, worst = [], 0.0
    for _, row in cells[~hosts.astype(bool)].reset_index().assign(mode="train_step").iterrows():
        cell = name_cell(row)
        apart = row["forward"] + row["backward"]
        together = row["whole"] - row["optimizer"]
        error = abs(apart - together)
        worst = max(worst, error / together)
        # A disturbed step excuses a difference of what most of its samples differ by, up to a limit.
        excused = max(tolerance * together, min(row["slow"] - row["whole"], MOST_EXCUSED * together))
        disturbed = row["slow"] / row["whole"]
        share = row["own forward"] / (row["own forward"] + row["backward"])
        expected = row["step forward"] / together
        if error > excused if on_gpu else max(apart / together, together / apart) > SLOWED * disturbed:
            complaints.append(f"{cell}: {apart:.2f} ms against {together:.2f} ms")
        elif abs(share - expected) > tolerance * disturbed * expected:
            complaints.append(f"{cell}: forward {share:.0%} of both, in the step {expected:.0%}")
    limit = f"within {tolerance:.0%}, or p80 - p20 of the step up to {MOST_EXCUSED:.0%}"
    if not on_gpu:
        limit = f"within {SLOWED} times p80 / p20 of the step"
    others = f"; {hosts.sum()} host-bound cells left out" if hosts.any() else ""
    examined = len(cells) - int(hosts.sum())
    return conclude(check, complaints, examined, f"{examined} cells {limit}; largest difference {worst:.1%}{others}")


def phases_apart_and_together(table: DataFrame) -> DataFrame:
    """One row per cell whose passes were also timed by themselves, ms.

    `forward` and `backward` are each from the shortest step that has them, `own forward` is beside that `backward`; of
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


def larger_sizes_take_longer(table: DataFrame) -> Check:
    """In fp32 a larger model's forward pass takes longer, other things being equal."""
    check = "in fp32, at equal context, a larger model never has the shorter forward pass"
    plain = select(table, compiled=False, attention="plain", cold_start=False)
    steps = select(plain, metric="forward", mode="train_step", precision="fp32")
    complaints, examined = [], 0
    for context, group in steps[steps["warmup"] == steps["warmup"].max()].groupby("context"):
        for small, large in itertools.pairwise(size_order(group)):
            # On a disturbed machine neighbouring sizes may overlap; quantiles leave out what disturbs few steps.
            fast, slow = statistic(group, "p20", size=small), statistic(group, "p80", size=large)
            if fast is None or slow is None:
                continue
            examined += 1
            if fast >= slow:
                complaints.append(f"context {context}: {small} p20 {fast:.2f} ms, {large} p80 {slow:.2f} ms")
    return conclude(check, complaints, examined, f"{examined} pairs of neighbouring sizes, p20 against p80")


def device_is_not_busier_than_the_step_is_long(table: DataFrame) -> Check:
    """The device works in a phase for no longer than the phase takes."""
    check = "in no phase does the device work for longer than the phase takes by the host's clock"
    steps = step_table(table)
    complaints, most = [], 0.0
    for phase in PHASES:
        for _, step in steps[steps[f"{phase}_busy"].notna()].iterrows():
            share = step[f"{phase}_busy"] / step[phase]
            most = max(most, share)
            if share > 1 + BUSIER:
                complaints.append(f"{name_cell(step)}: {phase} {share:.0%} busy")
    examined = int(steps["device_busy"].notna().sum())
    summary = f"{examined} cells; {most:.1%} at most, allowed {1 + BUSIER:.0%}"
    return conclude(check, complaints, examined, summary if examined else "busy time is measured on GPUs only")


def inference_is_no_slower(table: DataFrame) -> Check:
    """Where the device sets the pace, logits without a graph take no longer than with graph and loss."""
    check = "where the device sets the pace, inference is no slower than the forward pass with graph and loss"
    slower = between_cells(0.0)
    steps = step_table(table)
    steps = steps[steps["busy"].notna() & ~steps["host_bound"]]
    complaints, most, examined = [], 0.0, 0
    for _, inferred in select(steps, mode="inference").iterrows():
        trained = one(steps, mode="train_step", **{name: inferred[name] for name in CELL})
        if trained is None:
            continue
        examined += 1
        ratio = inferred["step"] / trained["forward"]
        most = max(most, ratio)
        if ratio > 1 + slower:
            complaints.append(f"{name_cell(inferred)}: {ratio:.2f} times as long")
    summary = f"{examined} cells; {most:.2f} times as long at most, allowed {1 + slower:.2f}"
    return conclude(check, complaints, examined, summary if examined else "no such cell was measured on a GPU")


def compiled_is_compiled(table: DataFrame) -> Check:
    """Compiled rows captured a graph, eager rows none."""
    rows = select(table, metric="compiled_graphs")
    complaints = [
        f"{name_cell(row)}: {row['mean']:.0f} graphs"
        for _, row in rows.iterrows()
        if (row["mean"] > 0) != row["compiled"]
    ]
    compiled = int(rows["compiled"].sum())
    return conclude(
        "compiled cells ran captured graphs, eager cells none",
        complaints,
        compiled,
        f"{compiled} compiled and {len(rows) - compiled} eager cells" if compiled else "nothing compiled was measured",
    )


def nothing_beats_the_roofline(table: DataFrame) -> Check:
    """No step is faster than its matrix multiplies at the GPU's dense peak."""
    check = "no step is faster than its matrix multiplies at the data sheet's dense peak"
    timings = [
        Timing(
            cell=name_cell(row),
            flops=step_flops(
                row["mode"], parse_size(row["size"]), row["vocab_size"], row["batch_size"], row["context"]
            ),
            milliseconds=row["median"],
            precision=row["precision"],
        )
        for _, row in select(table, metric="step").iterrows()
    ]
    return under_the_roofline(check, measured_gpu({"": table}), timings)


def memory_holds_the_state(table: DataFrame) -> Check:
    """Peak memory is no less than the closed form of what a step must keep, and no more than the device has."""
    check = "peak memory is between the closed form of weights, gradients and moments and the device's memory"
    complaints = []
    rows = select(table, metric="peak_memory", status="ok")
    for _, row in rows.iterrows():
        least = state_bytes(row["mode"], parse_size(row["size"]), row["vocab_size"])
        complaints += outside(row, name_cell(row), least)
    summary = f"{len(rows)} cells" if len(rows) else "peak memory is counted on GPUs only"
    return conclude(check, complaints, len(rows), summary)


def precision_is_what_it_says(table: DataFrame) -> Check:
    """bf16 rows computed bf16 logits; fp32 rows fp32 logits with TF32 seen to be off."""
    rows = select(table, metric="logits_dtype")
    expected = {"bf16": "bfloat16", "fp32": "float32"}
    complaints = [
        f"{name_cell(row)}: {row['value']}{', TF32 on' if row['tf32'] else ''}"
        for _, row in rows.iterrows()
        if row["value"] != expected[row["precision"]] or row["tf32"]
    ]
    return conclude(
        "bf16 cells computed in bf16, fp32 cells in fp32 with TF32 off (probed by a multiplication)",
        complaints,
        len(rows),
        f"{len(rows)} cells",
    )
