"""Self-checks of the kernel profile."""

from pandas import DataFrame

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.compare.bounds import HOST_BOUND
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.kernel_names import LONGEST_NAME, categorize
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import parse_size
from scripts.checks import Case, Evidence, NotApplicable, between_cells, check
from scripts.views.cells import cells, name_cell
from scripts.views.data import measured_gpu, select
from scripts.views.kernels import FORWARD, kernels, products, total

CELL = parameters(KernelProfile)

STAGE_TOLERANCE = 0.05
"""Relative difference of a stage in the trace and between its events."""
HOST_TOLERANCE = 0.1
"""The same in host-bound steps: the host may leave the stage some time after the last kernel, at which idle time in
the trace ends."""
STAGE_SLACK_MS = 0.2
"""Difference that any stage may have, however short it is: under the profiler the host takes that long from recording
the first event to entering the stage's range."""
FORWARD_TOLERANCE = between_cells(0.05)
"""Relative difference of a forward pass in the trace and by the host's clock in another process."""
UNATTRIBUTED = 0.01
"""The largest share of the kernels' time of which the origin may be unknown."""
ROUNDING = 1e-6
VAGUE = ("other", "elementwise", "reduction")
"""Categories of names that may have lost what tells more, as they were shortened; the operator may have told it, too.
"""
NO_KERNEL = "no kernel was profiled"
GPUS_ONLY = "kernels and idle time exist on GPUs only"


@check("{n} stages, or within {STAGE_SLACK_MS:g} ms; largest difference {most:.1%}", GPUS_ONLY)
def stages_add_up(kernel_profile: DataFrame) -> Evidence:
    """A stage's kernels and idle time agree with its CUDA events within {STAGE_TOLERANCE:.0%}, or
    {HOST_TOLERANCE:.0%} if host-bound.
    """
    wanted = ["stage_busy", "stage_idle", "stage_profiled"]
    rows = kernel_profile[kernel_profile["metric"].isin(wanted) & (kernel_profile["status"] == "ok")]
    times = rows.pivot_table(index=[*CELL, "stage", "label"], columns="metric", values="mean")
    for _, row in times.reindex(columns=wanted).dropna().reset_index().iterrows():
        traced, events = row["stage_busy"] + row["stage_idle"], row["stage_profiled"]
        error = abs(traced - events) / events if abs(traced - events) > STAGE_SLACK_MS else 0.0
        tolerance = HOST_TOLERANCE if row["stage_busy"] < HOST_BOUND * events else STAGE_TOLERANCE
        found = f"{traced:.2f} ms in the trace, {events:.2f} ms between the events"
        yield Case(f"{name_cell(row)}, {row['stage']}", error > tolerance, found, error)


@check("{n} cells; largest difference {most:.1%}", "no cell of both is device-bound")
def agrees_with_end_to_end(kernel_profile: DataFrame, end_to_end: DataFrame) -> Evidence:
    """Forward passes in the trace agree with `end_to_end` within {FORWARD_TOLERANCE:.0%}, if device-bound."""
    if not measured_gpu({"": kernel_profile}):
        raise NotApplicable(GPUS_ONLY)
    compared = [name for name in CELL if name not in ("warmup", "steps")]
    for row, rows in cells(kernel_profile, KernelProfile, "step"):
        # The host's clock has forward pass and loss together.
        stages = FORWARD if row["mode"] == "inference" else [*FORWARD, "loss"]
        busy, idle = total(rows, "stage_busy", stages), total(rows, "stage_idle", stages)
        others = select(end_to_end, metric="forward", **{name: row[name] for name in compared})
        if busy is None or idle is None or busy < HOST_BOUND * (busy + idle) or not len(others):
            continue
        elsewhere = float(others.sort_values("warmup")["median"].iloc[-1])
        error = abs(busy + idle - elsewhere) / elsewhere
        found = f"{busy + idle:.2f} ms in the trace, {elsewhere:.2f} ms"
        yield Case(name_cell(row), error > FORWARD_TOLERANCE, found, error)


@check("{n} cells; at most {most:.2%}", NO_KERNEL)
def kernels_are_attributed(kernel_profile: DataFrame) -> Evidence:
    """Under {UNATTRIBUTED:.0%} of the kernels' time is of unknown stage or module."""
    rows = select(kernel_profile, metric="unattributed")
    launched = kernels(kernel_profile)
    unknown = launched["ms"].where((launched["stage"] == "") | (launched["range"] == ""), 0.0)
    keys = [launched[name] for name in CELL]
    shares = (unknown.groupby(keys).sum() / launched["ms"].groupby(keys).sum()).reindex(rows.set_index(CELL).index)
    for _, row in rows.iterrows():
        yield Case(name_cell(row), row["mean"] > UNATTRIBUTED, f"{row['mean']:.1%}", row["mean"])
    for (_, row), share in zip(rows.iterrows(), shares, strict=True):
        if abs(row["mean"] - share) > ROUNDING:
            yield f"{name_cell(row)}: {row['mean']:.2%}, of its kernels {share:.2%}"


@check("{n} cells", NO_KERNEL)
def products_are_counted(kernel_profile: DataFrame) -> Evidence:
    """Eager forward passes launch one matmul kernel per product of the model: layers × 9 + 1."""
    rows = products(kernels(kernel_profile, FORWARD, compiled=False, attention="plain", model=KernelProfile().model))
    for _, row in rows.groupby([*CELL, "label"])["calls"].sum().reset_index().iterrows():
        expected = forward_products(parse_size(row["size"]))
        yield Case(name_cell(row), row["calls"] != expected, f"{row['calls']:g} kernels, {expected} products")


@check("{n} kernels", NO_KERNEL)
def categories_are_those_of_the_names(kernel_profile: DataFrame) -> Evidence:
    """Every kernel whose name tells what it does has that category.

    Stage and module may tell it, too.
    """
    rows = kernels(kernel_profile).drop_duplicates(["stage", "range", "category", "kernel"])
    for _, row in rows[rows["kernel"].str.len() < LONGEST_NAME].iterrows():
        found, named = row["category"], categorize(row["kernel"], stage=row["stage"], range_=row["range"])
        wrong = found != named and (named not in VAGUE or (named != "other" and found in VAGUE))
        yield Case(f"{row['kernel']} in {row['range'] or row['stage']}", wrong, f"{found}, by its name {named}")
