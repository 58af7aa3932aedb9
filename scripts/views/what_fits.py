"""Predicted against measured memory and time of every training step in the tables."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from numpy import nan
from pandas import DataFrame, Series

from cs336_systems.accounting.peak_memory import peak
from cs336_systems.accounting.setting import Setting
from cs336_systems.accounting.step_time import step_seconds
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.experiments.training_ladder import FIRST
from cs336_systems.fit.cells import (
    OF_EXPERIMENT,
    PREDICTED,
    contender_setting,
    contenders_of,
    rung_setting,
    step_setting,
)
from cs336_systems.fit.gpus import rates_of
from cs336_systems.fit.recorded import Recorded, kind, recorded
from cs336_systems.record.rows import parameters
from scripts.views.cells import in_words
from scripts.views.data import select
from scripts.views.steps import HOST_BOUND

MEMORY = {"memory_profile": "peak_allocated"}
"""The metric of an experiment's peak memory, if it is not `peak_memory`."""
BEFORE_UPDATE = "before_update"


def predictions(tables: Mapping[str, DataFrame], known: Recorded | None = None) -> DataFrame:
    """The rows of `measured_steps` with `memory_predicted` and `time_predicted`, `memory_error` and `time_error`.

    Errors are relative to what was measured, and NaN where nothing was, or the GPU has no listed rates.
    """
    known = known or recorded()
    found = measured_steps(tables)
    found["memory_predicted"] = [peak(setting).total / MIB for setting in found["setting"]]
    found["time_predicted"] = [
        nan if (rates := rates_of(gpu)) is None else 1e3 * step_seconds(setting, rates, known.weights)
        for setting, gpu in zip(found["setting"], found["gpu"], strict=True)
    ]
    for what in ("memory", "time"):
        found[f"{what}_error"] = found[f"{what}_predicted"] / found[what] - 1
    return found


def measured_steps(tables: Mapping[str, DataFrame]) -> DataFrame:
    """One row per measured step of each experiment on training.

    Columns: `experiment`, `label` of the size, `cell` in words, `kind` of step, `setting`, `gpu` and `gpu_memory`, the
    peak `memory` in MiB, and `time` in ms; `device_bound`, whether the device paces the step. Where the host does,
    `time` is for how long the device works in the step, or NaN where ranks wait for each other.
    """
    rows = [row for name in PREDICTED for row in _steps(name, tables[name], tables)]
    columns = [
        "experiment",
        "label",
        "cell",
        "gpu",
        "gpu_memory",
        "setting",
        "memory",
        "time",
        "device_bound",
        "share",
        "group",
    ]
    found = DataFrame(rows, columns=columns)
    found["kind"] = [kind(setting) for setting in found["setting"]]
    several = found["share"].notna()
    median = found.groupby("group")["share"].transform("median")
    found.loc[several, "device_bound"] = ((median >= HOST_BOUND) & (found["share"] >= HOST_BOUND))[several]
    found.loc[several & ~found["device_bound"].astype(bool), "time"] = nan
    return found


def _steps(name: str, table: DataFrame, tables: Mapping[str, DataFrame]) -> Iterator[dict[str, Any]]:
    """Each measured step of an experiment, with what was measured of it."""
    experiment = EXPERIMENTS[name]
    details = [column for column in ("rung", "wrapper", "contender", "bucket_mb") if column in table]
    keys = [*parameters(experiment), *details]
    on_gpu = table[(table["gpu"] != "") & (table["status"] == "ok")]
    if "model" in table:
        on_gpu = select(on_gpu, model=EndToEnd.model)
    for values, rows in on_gpu.groupby(keys, sort=False):
        cell = dict(zip(keys, values, strict=True))
        setting = _setting(name, cell, rows)
        step = _median(rows, "step")
        memory = _peak(rows, MEMORY.get(name, "peak_memory"))
        if setting is None or (step != step and memory != memory):
            continue
        busy = _median(rows, "device_busy")
        share = busy / _median(rows, "timeline_length")
        bound = not busy < HOST_BOUND * step
        words = in_words(experiment, tuple(cell[key] for key in parameters(experiment)))
        detail = " ".join(str(cell[key]) for key in details if cell[key])
        yield {
            "experiment": name,
            "label": rows["label"].iloc[0],
            "cell": f"{words} {detail}".strip(),
            "gpu": rows["gpu"].iloc[0],
            "gpu_memory": rows["gpu_memory"].iloc[0],
            "setting": setting,
            "memory": memory + _uncounted(name, cell, setting, rows, tables),
            "time": step if bound or share == share else busy,
            "device_bound": bound,
            "share": share if name in OF_EXPERIMENT else nan,
            "group": str((name, *(cell[key] for key in parameters(experiment)))),
        }


def _setting(name: str, row: Mapping[str, Any], rows: DataFrame) -> Setting | None:
    """The setting of a row; None of parts, and of a reader's own contender, which has no closed form."""
    cell = SimpleNamespace(**row)
    if name == "training_ladder":
        return rung_setting(cell, cell.rung) if cell.rung and cell.part == "steps" else None
    if name in OF_EXPERIMENT:
        contender, bucket = row.get("wrapper") or row.get("contender"), str(row.get("bucket_mb") or "")
        for declared in contenders_of(name):
            if declared.name == contender and bucket in ("", str(declared.bucket_mb)):
                return contender_setting(name, cell, declared)
        return None
    if name == "leaderboard":
        cell.recomputed = int(_median(rows, "recomputed_blocks"))
    return step_setting(name, cell)


def _uncounted(
    name: str, cell: Mapping[str, Any], setting: Setting, rows: DataFrame, tables: Mapping[str, DataFrame]
) -> float:
    """MiB of a step that its measured peak leaves out.

    Symmetric memory is not the allocator's: the weights of `sharded_optimizer` in the experiment on FSDP. Where rungs
    are alive together, cuBLAS's workspaces were there before all but the first.
    """
    if name == "fsdp" and setting.scheme == "sharded optimizer":
        return setting.weight_bytes * setting.weights / MIB
    if name == "training_ladder" and cell["rung"] != FIRST.name:
        same = {key: cell[key] for key in ("size", "batch_size", "context", "vocab_size", "part")}
        if len(select(tables[name], metric="order", value="interleaved", **same)):
            return 64.0
    return 0.0


def _median(rows: DataFrame, metric: str) -> float:
    found = select(rows, metric=metric)
    if "kind" in found:
        found = select(found, kind="")
    return float(found["median"].iloc[0]) if len(found) else nan


def _peak(rows: DataFrame, metric: str) -> float:
    """The peak of a step, MiB; of several ranks and moments that before the update, on average."""
    found = select(rows, metric=metric)
    if "moment" in found:
        found = select(found, moment=BEFORE_UPDATE)
    if not len(found):
        return nan
    row: Series = found.iloc[0]
    return float(row["mean"]) / (MIB if row["unit"] == "B" else 1)


def summary(errors: Series) -> dict[str, float]:
    """The number of `cells` with an error, and the `median` and the `most` of its size."""
    size = errors.abs().dropna()
    return {"cells": len(size), "median": float(size.median()), "most": float(size.max())}
