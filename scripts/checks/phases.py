"""Self-checks of the phases and precisions of training on several ranks, on GPUs."""

from collections.abc import Mapping
from functools import partial

import pandas
from pandas import DataFrame, Series

from cs336_systems.experiments.metrics import metrics_of
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.rows import parameters
from cs336_systems.sizes import size_name
from scripts.checks import Case, Evidence, check, under_the_roofline
from scripts.views.closed_forms import flops_of
from scripts.views.completeness import contenders_of
from scripts.views.data import measured_gpu, select

TRAINING = ("data_parallel", "optimizer_sharding", "fsdp")
WHOLE_STATE = ("none", "naive", "flat", "overlapped", "bucketed", "symmetric_memory", "ddp", "ddp_view", "unsharded")
"""Contenders whose every rank updates all parameters, with the same optimizer."""
LEAST, MOST = 0.6, 2.5
"""The phases' sum over the step: they are timed apart from it, one by one, so that none overlaps with another."""
ALIKE = 0.3
"""Relative difference between two contenders' times of the same update."""
ON_GPUS = "examined on GPUs only"


def steps(tables: Mapping[str, DataFrame]) -> list[DataFrame]:
    """The steps of each experiment that was measured on GPUs."""
    return [steps_of(name, tables[name]) for name in TRAINING if measured_gpu({name: tables[name]})]


def steps_of(experiment: str, table: DataFrame) -> DataFrame:
    """A row per contender and cell: medians of its step and phases, ms.

    Next to them are `contender` and `cell`, in words; and `phases`, what the phases add up to.
    """
    phases = [name for name, metric in metrics_of(EXPERIMENTS[experiment]).items() if metric.part_of == "step"]
    rows = select(table, status="ok")
    rows = rows[rows["metric"].isin(["step", *phases])].assign(contender=contenders_of)
    cell = parameters(EXPERIMENTS[experiment])
    wide = rows.pivot(index=[*cell, "contender"], columns="metric", values="median")
    wide = wide.reindex(columns=["step", *phases]).assign(phases=lambda steps: steps[phases].sum(axis=1)).reset_index()
    compiled = wide["compiled"].map({True: ", compiled", False: ""}) if "compiled" in wide else ""
    setting = wide["size"].map(size_name) + ", " + wide["processes"].astype(str) + " processes" + compiled
    wide["cell"] = setting + ", " + wide["precision"]
    return wide


def named(row: Series) -> str:
    """A contender in a cell, in words."""
    return f"{row['contender']}, {row['cell']}"


@check("{n} steps; the closest reaches {most:.0%}", ON_GPUS)
def nothing_beats_the_roofline(tables: Mapping[str, DataFrame], steps: list[DataFrame]) -> Evidence:
    """No training step on several GPUs is faster than its matmuls at the data sheet's dense peak."""
    timed = pandas.concat(steps).dropna(subset="step") if steps else DataFrame()
    name = "{cell}, {contender}".format_map
    work = partial(flops_of, mode="train_step")
    yield from under_the_roofline(measured_gpu(tables), timed, name, work, time="step")


@check("{n} steps, {LEAST} to {MOST} times", ON_GPUS)
def phases_make_the_step(steps: list[DataFrame]) -> Evidence:
    """The phases of training on several GPUs, timed apart, add up to about a step."""
    for table in steps:
        for _, row in table[table["step"].notna() & (table["phases"] > 0)].iterrows():
            found = f"{row['phases']:.1f} of {row['step']:.1f} ms"
            yield Case(named(row), not LEAST <= row["phases"] / row["step"] <= MOST, found)


@check("{n} contenders", ON_GPUS)
def updates_are_alike(steps: list[DataFrame]) -> Evidence:
    """Contenders that update all parameters take equally long for it."""
    for table in steps:
        wrapper = table["contender"].astype(str).str.split().str[0]
        whole = table[wrapper.isin(WHOLE_STATE) & table["optimizer"].notna()]
        middle = whole.groupby("cell")["optimizer"].transform("median")
        yield len(whole)
        for _, row in whole[(whole["optimizer"] / middle - 1).abs() > ALIKE].iterrows():
            yield f"{named(row)}: {row['optimizer']:.1f} ms"


@check("{n} contenders", ON_GPUS)
def bf16_is_faster(steps: list[DataFrame]) -> Evidence:
    """Training on several GPUs is faster in bf16 than in fp32.

    The same step takes longer in fp32, compiled or not, since its matmuls run at a fraction of the rate.
    """
    for table in steps:
        wide = table.pivot_table(index=["size", "processes", "contender"], columns="precision", values="step")
        wide = wide.reindex(columns=["fp32", "bf16"]).dropna()
        yield len(wide)
        for row in wide[wide["bf16"] >= wide["fp32"]].reset_index().itertuples():
            where = f"{row.contender}, {size_name(str(row.size))}, {row.processes} processes"
            yield f"{where}: {row.bf16:.1f} ms in bf16, {row.fp32:.1f} in fp32"
