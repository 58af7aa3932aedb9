"""Predicted against measured memory and time of every training step in the tables."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from numpy import nan
from pandas import DataFrame, Series

from cs336_systems.accounting.peak_memory import possible_peaks, workspaces
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_work import step_work
from cs336_systems.accounting.units import MIB
from cs336_systems.compare.speed import host_bound
from cs336_systems.experiments.base import Experiment
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.leaderboard import Leaderboard
from cs336_systems.experiments.optimizer_sharding import MOMENTS
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import FIRST
from cs336_systems.fit.gpus import rates_of
from cs336_systems.fit.recorded import Recorded, kind, recorded
from cs336_systems.measure.gpus import gpu_of
from cs336_systems.record.rows import parameters
from scripts.views.cells import CONTENDER, cell_of, contender_key, in_words
from scripts.views.data import select

PREDICTED = [name for name, kind in EXPERIMENTS.items() if kind.settings_of_steps is not Experiment.settings_of_steps]
"""Experiments on training steps, whose memory or time is predicted."""
PEAKS = {"peak_memory": 1, "peak_allocated": MIB}
"""Metrics of a step's peak memory, and their units per MiB."""
STAGES = "stage_busy"
"""The metric whose sum over stages is the device-busy time, if there is no `device_busy`."""
METRICS = (*PEAKS, "step", "device_busy", STAGES, "timeline_length", "recomputed_blocks")
BEFORE_UPDATE = MOMENTS[1]
HELD_BACK = "kernel_profile"
"""The experiment whose steps are not fitted: they test the fit on other steps."""
FP8_FUSED_SINCE = "2026-11-26T17:30"
"""Steps in FP8 that were measured earlier had compiled passes."""
TOGETHER = ("size", "batch_size", "context", "vocab_size")
"""Parameters of the ladder's cells whose rungs exist together or one after another."""


def predictions(tables: Mapping[str, DataFrame], known: Recorded | None = None) -> DataFrame:
    """The rows of `measured_steps` with `memory_predicted` and `time_predicted`, `memory_error` and `time_error`.

    Of several possible peaks the nearest is taken. Errors are relative to the measurement, and NaN if there is none, or
    if the GPU has no listed rates.
    """
    known = known or recorded()
    steps = measured_steps(tables)
    steps["memory_predicted"] = [
        min((use.total / MIB for use in possible_peaks(setting)), key=lambda peak: abs(peak - measured))
        for setting, measured in zip(steps["setting"], steps["memory"], strict=True)
    ]
    steps["time_predicted"] = [
        1e3 * step_work(setting, rates_of(model)).seconds(known.weights) if (model := gpu_of(gpu)) else nan
        for setting, gpu in zip(steps["setting"], steps["gpu"], strict=True)
    ]
    for what in ("memory", "time"):
        steps[f"{what}_error"] = steps[f"{what}_predicted"].astype(float) / steps[what].astype(float) - 1
    return steps


def measured_steps(tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per step that an experiment on training measured on a GPU.

    Columns: `experiment`, `label` of the size, `cell` in words, `kind` of step, `setting`, `gpu` and `gpu_memory`, the
    peak `memory` in MiB, and `time` in ms; `device_bound`, whether the step is. In a host-bound step, `time` is the
    device-busy time, or NaN if ranks wait for each other.
    """
    rows = [row for name in PREDICTED for row in _steps(name, tables[name])]
    columns = ["experiment", "label", "cell", "gpu", "gpu_memory", "setting", "memory", "time", "device_bound"]
    steps = DataFrame(rows, columns=[*columns, "share", "group"])
    steps["kind"] = [kind(setting) for setting in steps["setting"]]
    # With several ranks, the device also waits for other ranks, so the median of the cell's contenders decides.
    several = steps["share"].notna()
    busy = steps["share"].astype(float)
    bound = ~(host_bound(1.0, busy.groupby(steps["group"]).transform("median")) | host_bound(1.0, busy))
    steps["device_bound"] = steps["device_bound"].where(~several, bound).astype(bool)
    steps.loc[several & ~steps["device_bound"], "time"] = nan
    return steps


def evaluated(steps: DataFrame, what: str) -> DataFrame:
    """The predictions whose error counts: all for `memory`, only device-bound steps for `time`."""
    rows = steps.dropna(subset=[f"{what}_error"])
    return rows if what == "memory" else rows[rows["device_bound"]]


def summary(errors: Series) -> dict[str, float]:
    """The number of `cells` with an error, and its `median` and maximum (`most`)."""
    size = errors.abs()
    return {"cells": len(size), "median": float(size.median()), "most": float(size.max())}


def _steps(name: str, table: DataFrame) -> Iterator[dict[str, Any]]:
    """Each measured step of an experiment, with its measurements."""
    experiment = EXPERIMENTS[name]
    details = [column for column in CONTENDER if column in table]
    keys = [*parameters(experiment), *details]
    together = _together(table) if name == "training_ladder" else set()
    several = hasattr(experiment, "contenders")
    rows = table[(table["gpu"] != "") & (table["status"] == "ok") & table["metric"].isin(METRICS)]
    for column, wanted in (("model", [EndToEnd.model]), ("kind", [""]), ("moment", ["", BEFORE_UPDATE])):
        if column in rows:
            rows = rows[rows[column].isin(wanted)]
    for values, of_step in rows.groupby(keys, sort=False):
        cell = dict(zip(keys, values, strict=True))
        median = dict(zip(of_step["metric"], of_step["median"], strict=True))
        setting = _setting(name, cell, median)
        if setting is None or not {*PEAKS, "step"} & set(median):
            continue
        mean = dict(zip(of_step["metric"], of_step["mean"], strict=True))
        memory = next((mean[metric] / unit for metric, unit in PEAKS.items() if metric in mean), nan)
        stages = of_step.loc[of_step["metric"] == STAGES, "median"]
        step, busy = median.get("step", nan), median.get("device_busy", stages.sum() if len(stages) else nan)
        share = busy / median.get("timeline_length", nan)
        bound = not host_bound(step, busy)
        words = in_words(experiment, tuple(cell[key] for key in parameters(experiment)))
        first = of_step.iloc[0]
        if setting.fp8 and first["utc"] < FP8_FUSED_SINCE:
            setting = replace(setting, passes="compiled")
        yield {
            "experiment": name,
            "label": first["label"],
            "cell": " ".join([words, *(str(cell[key]) for key in details if cell[key])]),
            "gpu": first["gpu"],
            "gpu_memory": first["gpu_memory"],
            "setting": setting,
            "memory": memory + _uncounted(name, cell, setting, together),
            "time": step if bound or several else busy,
            "device_bound": bound,
            "share": share if several else nan,
            "group": str((name, *(cell[key] for key in parameters(experiment)))),
        }


def _setting(name: str, step: Mapping[str, Any], median: Mapping[str, float]) -> Setting | None:
    """The setting of a step; None for parts, and for a user's own contender, which has no closed form."""
    cell = cell_of(EXPERIMENTS[name], step)
    if isinstance(cell, Leaderboard):
        if "recomputed_blocks" not in median:
            return None
        cell = replace(cell, recomputed=int(median["recomputed_blocks"]))
    return _settings(cell).get(contender_key(step))


@cache  # each contender, or rung, has its own rows
def _settings(cell: Experiment) -> Mapping[str, Setting]:
    return cell.training_steps()


def _together(ladder: DataFrame) -> set[tuple[Any, ...]]:
    """The cells whose rungs existed together."""
    orders = select(ladder, metric="order", value="interleaved")
    return set(orders[list(TOGETHER)].itertuples(index=False, name=None))


def _uncounted(name: str, cell: Mapping[str, Any], setting: Setting, together: set[tuple[Any, ...]]) -> float:
    """MiB of a step that its measured peak leaves out.

    Symmetric memory is not the allocator's: the weights of `sharded_optimizer` in the experiment on FSDP. If rungs
    exist together, cuBLAS's workspaces existed before all rungs except the first.
    """
    if name == "fsdp" and setting.scheme == "sharded optimizer":
        return setting.weight_bytes * setting.weights / MIB
    if together and cell["rung"] != FIRST.name and tuple(cell[key] for key in TOGETHER) in together:
        return workspaces(setting) / (2 if setting.graph else 1) / MIB
    return 0.0
