"""Self-checks of the kernel profile."""

from pandas import DataFrame

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.kernel_names import LONGEST_NAME, categorize, is_product
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import parse_size
from scripts.checks import Case, Cases, check, name_row
from scripts.views.data import select
from scripts.views.kernels import FORWARD, kernels

CELL = parameters(KernelProfile)
STAGE = [*CELL, "stage"]
STAGE_TOLERANCE = 0.05
"""Relative difference of a stage's time in the trace from the time between its events."""
HOST_TOLERANCE = 0.1
"""The same in host-bound steps: the host may leave the stage some time after the last kernel, where idle time in the
trace ends."""
STAGE_SLACK_MS = 0.3
"""Difference allowed for any stage, however short: under the profiler the host takes this long from recording the first
event to entering the stage's range; in the loss of fp32 steps up to 0.16 and 0.24 ms in two runs on H200s."""
VAGUE = ("other", "elementwise", "reduction")
"""Categories of kernel names that may have lost information when they were shortened; the operator may also have
provided it."""
SPLIT_SUM = "_split_k"
"""Suffix of the names of cuBLAS's fp32 kernels that add up the parts of a matmul."""
NO_KERNEL = "no kernel was profiled"


@check("{n} stage{s}; largest difference above {STAGE_SLACK_MS:g} ms: {most:.1%}", "idle time exists on GPUs only")
def stages_add_up(kernel_profile: DataFrame) -> Cases:
    """A stage's kernel and idle times add up to the time between its CUDA events within {STAGE_TOLERANCE:.0%}, or
    {HOST_TOLERANCE:.0%} if host-bound.
    """
    metrics = ["stage_busy", "stage_idle", "stage_profiled"]
    times = DataFrame({each: select(kernel_profile, metric=each).set_index(STAGE)["mean"] for each in metrics})
    for _, row in times.dropna().reset_index().iterrows():
        traced, events = row["stage_busy"] + row["stage_idle"], row["stage_profiled"]
        error = abs(traced - events) / events if abs(traced - events) > STAGE_SLACK_MS else 0.0
        tolerance = HOST_TOLERANCE if host_bound(events, row["stage_busy"]) else STAGE_TOLERANCE
        detail = f"{traced:.2f} ms in the trace, {events:.2f} ms between the events"
        yield Case(name_row(KernelProfile.name, row), error > tolerance, detail, error)


@check("{n} cell{s}", NO_KERNEL)
def products_are_counted(kernel_profile: DataFrame) -> Cases:
    """Eager forward passes launch one kernel per matmul of the model: layers × 9 + 1.

    cuBLAS splits small ones along their inner dimension; its two kinds of kernels have two names for adding up parts.
    """
    rows = kernels(kernel_profile, FORWARD, compiled=False, attention="plain", model=KernelProfile().model)
    rows = select(rows, category="matmul")
    rows = rows[rows["kernel"].map(is_product).astype(bool) & ~rows["kernel"].str.endswith(SPLIT_SUM)]
    for _, row in rows.groupby(CELL)["calls"].sum().reset_index().iterrows():
        expected = forward_products(parse_size(row["size"]))
        detail = f"{row['calls']:g} kernels, {expected} matmuls"
        yield Case(name_row(KernelProfile.name, row), row["calls"] != expected, detail)


@check("{n} kernel{s}", NO_KERNEL)
def categories_are_those_of_the_names(kernel_profile: DataFrame) -> Cases:
    """Every kernel whose name states its category has that category.

    Stage and module may also determine it.
    """
    rows = kernels(kernel_profile).drop_duplicates(["stage", "range", "category", "kernel"])
    for _, row in rows[rows["kernel"].str.len() < LONGEST_NAME].iterrows():
        category, named = row["category"], categorize(row["kernel"], stage=row["stage"], range_=row["range"])
        wrong = category != named and (named not in VAGUE or (named != "other" and category in VAGUE))
        yield Case(f"{row['kernel']} in {row['range'] or row['stage']}", wrong, f"{category}, by its name {named}")
