"""Self-checks of the training ladder."""

from collections.abc import Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.training_ladder import step_flops
from cs336_systems.experiments.training_ladder import FIRST, FP8, RUNGS
from scripts.checks import HONEST, Case, Evidence, check, under_the_roofline, within_memory
from scripts.views.data import measured_gpu, select
from scripts.views.training_ladder import load_of_row, losses, rung_table

SCATTER = 3
"""Standard deviations of fp32 losses from different seeds within which each rung's loss must lie."""
MOMENTS = 8
"""Bytes per weight of AdamW's two fp32 moments."""
COOLER = 0.1
"""How much faster a step may be than its parts alone: matmuls in a row reach the power limit, and the clock falls."""
BUSIER = 0.05
"""How much longer than the median step the device may seem to work: its time is that of another step."""


def rungs(tables: Mapping[str, DataFrame]) -> DataFrame:
    """A row per rung and cell."""
    return rung_table(tables["training_ladder"])


def named(row: Series) -> str:
    """A rung of a cell in words."""
    return f"{row['label']}, {row['batch_size']} x {row['context']}, {row['rung']}"


@check("{n} steps; the closest takes {least:.2f} of it", "a processor does other work too")
def no_step_beats_its_floor(rungs: DataFrame) -> Evidence:
    """No step of the ladder is faster than its parts alone by more than {COOLER:.0%}."""
    known = rungs[rungs["floor"].notna() & (rungs["gpu"] != "") & (rungs["rung"] != FP8.name)]
    for _, row in known.iterrows():
        found = f"{row['step']:.1f} ms, floor {row['floor']:.1f} ms"
        yield Case(named(row), row["over"] < (1 - COOLER) * (1 - HONEST), found, float(row["over"]))


@check("{n} timings; the closest reaches {most:.0%}")
def nothing_beats_the_roofline(rungs: DataFrame) -> Evidence:
    """No step of the ladder is faster than its matmuls at the data sheet's dense peak."""
    rows = rungs[rungs["rung"] != FP8.name]
    rows = rows.assign(precision=rows["rung"].map(lambda rung: "fp32" if rung == FIRST.name else "bf16"))
    gpu = measured_gpu({"": rungs})
    yield from under_the_roofline(gpu, rows, named, lambda row: step_flops(load_of_row(row)), time="step")


@check("{n} steps; {most:.1%} at most, allowed {BUSIER:.0%} more", "busy time is measured on GPUs only")
def device_is_not_busier_than_the_step_is_long(rungs: DataFrame) -> Evidence:
    """In no step of the ladder does the device work for longer than the step takes."""
    for _, row in rungs[rungs["device_busy"].notna()].iterrows():
        share = float(row["device_busy"] / row["step"])
        yield Case(named(row), share > 1 + BUSIER, f"{share:.0%} busy", share)


@check("{n} types")
def precision_is_what_it_says(training_ladder: DataFrame) -> Evidence:
    """The ladder's rungs compute in the precision that they name, with TF32 off.

    Under autocast weights are fp32, and attention gets bf16.
    """
    rows = training_ladder[
        training_ladder["metric"].isin(["weights_dtype", "attention_dtype"]) & (training_ladder["status"] == "ok")
    ]
    for _, row in rows.iterrows():
        precision = RUNGS[row["rung"]].precision
        wide = precision == "fp32" or (precision == "autocast" and row["metric"] == "weights_dtype")
        found = f"{row['metric']} {row['value']}{', TF32 on' if row['tf32'] else ''}"
        yield Case(named(row), row["value"] != ("float32" if wide else "bfloat16") or row["tf32"], found)


@check("{n} steps", "peak memory is counted on GPUs only")
def memory_holds_the_state(training_ladder: DataFrame) -> Evidence:
    """Peak memory of a rung is between the closed form of weights, gradients and moments and the device's memory.

    An update under the backward pass frees gradients as it goes.
    """
    for _, row in select(training_ladder, metric="peak_memory", part="steps").iterrows():
        if not row["rung"]:
            continue
        rung = RUNGS[row["rung"]]
        weights, masters = (2, 2) if rung.precision == "bf16" else (4, 0)
        gradients = 0 if rung.overlap else weights
        least = (weights + masters + MOMENTS + gradients) * load_of_row(row).weights
        yield within_memory(row, named(row), least)


@check("{n} rungs; {most:.1f} at most", "no rung was trained")
def every_rung_learns(training_ladder: DataFrame) -> Evidence:
    """Each rung's loss after training is within {SCATTER} standard deviations of fp32's over seeds.

    FP8's is shown, not judged.
    """
    found = losses(training_ladder)
    exact = found[found["rung"] == FIRST.name]
    if not len(exact):
        return
    loss, std = exact["loss"].iloc[0], exact["std"].iloc[0]
    for _, row in found[~found["rung"].isin([FIRST.name, FP8.name])].iterrows():
        away = float(abs(row["loss"] - loss) / std)
        yield Case(row["rung"], not away <= SCATTER, f"{row['loss']:.3f}, fp32 {loss:.3f} ± {std:.3f}", away)
