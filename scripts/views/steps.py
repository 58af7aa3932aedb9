"""Measured steps of the model, one row per cell, and whether they are host-bound, for figures and answers."""

from math import nan

from pandas import DataFrame, Series

from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.measurement import parse_samples
from cs336_systems.record.rows import parameters
from scripts.views.cells import wide
from scripts.views.closed_forms import flops_of
from scripts.views.data import MODES, PHASES, in_order, select

PASSES = {"forward": PHASES[:1], "forward + backward": PHASES[:2], "training step": PHASES}
"""The first phases of a training step, by their names for readers."""


def step_table(table: DataFrame) -> DataFrame:
    """One row per measured cell of `end_to_end`, small to large.

    Columns: the parameters and `label`; the median of every metric, ms, s, MiB or a number as measured, NaN where it
    was not; statistics and `samples` (a list, ms) of whole steps; `busy`, the share of the step in which
    the device works; `host_bound`; for each of PASSES its time, the sum of its phases' medians, and with `, busy`
    behind its name how long the device works in it, both in ms.
    """
    keys = [*parameters(EndToEnd), "label"]
    statistics = ["median", "mean", "std", "p20", "p80", "n", "samples", "gpu", "gpu_memory"]
    steps = wide(table, keys, list(EndToEnd.metrics), "step", statistics)
    steps = steps.rename(columns={"warmup": "warmup_seconds"}).reset_index()  # the parameter is their number
    steps["samples"] = steps["samples"].map(parse_samples)
    steps["busy"] = steps["device_busy"] / steps["step"]
    steps["host_bound"] = host_bound(steps["step"], steps["device_busy"])
    for title, phases in PASSES.items():
        steps[title] = steps[phases].sum(axis=1, skipna=False)
        steps[f"{title}, busy"] = steps[[f"{phase}_busy" for phase in phases]].sum(axis=1, skipna=False)
    return in_order(steps, ["size", "context", "precision", "mode"], mode=list(MODES), precision=["bf16", "fp32"])


def steady(steps: DataFrame) -> DataFrame:
    """The cells of warm processes, after the most warm-up steps."""
    warm = select(steps, cold_start=False)
    return warm[warm["warmup"] == warm["warmup"].max()]


def most_complete(steps: DataFrame) -> DataFrame:
    """For each cell, the most complete measured kind of step, except inference, which has no graph."""
    kinds = steps[steps["mode"] != "inference"]
    keys = [name for name in parameters(EndToEnd) if name != "mode"]
    return kinds.drop_duplicates(keys, keep="last")


def per_launch(steps: DataFrame) -> DataFrame:
    """The steps with counted launches, and µs per launch: `host` of the step, `device` of its work.

    The device takes the same time for the same operations, so if `host` is well above `device`, the step is host-bound.
    """
    steps = steps[(steps["launches"] > 0) & steps["device_busy"].notna()]
    times = {"host": "step", "device": "device_busy"}
    return steps.assign(**{name: 1e3 * steps[time] / steps["launches"] for name, time in times.items()})


def utilization(row: Series, mode: str, milliseconds: float) -> float:
    """FLOPs of the matmuls in a row's step over its time and the GPU's dense peak; NaN where no peak is known."""
    peak = gpu_of(row["gpu"])
    return flops_of(row, mode) / (milliseconds / 1e3) / peak.flops(row["precision"]) if peak else nan
