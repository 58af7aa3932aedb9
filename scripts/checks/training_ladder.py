"""Self-checks of the training ladder."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.training_ladder import step_flops
from cs336_systems.experiments.training_ladder import FIRST, RUNGS
from scripts.checks import HONEST, Check, Evidence, Timing, check, conclude, under_the_roofline, within_memory
from scripts.views.data import measured_gpu, select
from scripts.views.training_ladder import load_of_row, losses, rung_table

SCATTER = 3
"""Standard deviations of fp32 losses from different seeds within which each rung's loss must lie."""
MOMENTS = 8
"""Bytes per weight of AdamW's two fp32 moments."""
BUSIER = 0.05
"""How much longer than the median step the device may seem to work: its time is that of another step."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    table = tables["training_ladder"]
    rungs = rung_table(table)
    yield no_step_beats_its_floor(rungs)
    yield nothing_beats_the_roofline(rungs)
    yield device_is_not_busier_than_the_step_is_long(rungs)
    yield precision_is_what_it_says(table)
    yield memory_holds_the_state(table)
    yield every_rung_learns(table)


def named(row: Series) -> str:
    """A rung of a cell in words."""
    return f"{row['label']}, {row['batch_size']} x {row['context']}, {row['rung']}"


def no_step_beats_its_floor(rungs: DataFrame) -> Check:
    """No bf16 or fp32 step is faster than its parts alone."""
    known = rungs[rungs["floor"].notna() & (rungs["gpu"] != "") & (rungs["rung"] != "fp8")]
    complaints = [
        f"{named(row)}: {row['step']:.1f} ms, floor {row['floor']:.1f} ms"
        for _, row in known.iterrows()
        if row["over"] < 1 - HONEST
    ]
    closest = f"{len(known)} steps; the closest takes {known['over'].min():.2f} of it"
    return conclude(
        "no step of the ladder is faster than its parts alone",
        complaints,
        len(known),
        closest if len(known) else "a processor does other work too",
    )


@check("the closest reaches {most:.0%} of the peak")
def nothing_beats_the_roofline(rungs: DataFrame) -> Evidence:
    """No step of the ladder is faster than its matmuls at the data sheet's dense peak."""
    timings = [
        Timing(
            cell=named(row),
            flops=step_flops(load_of_row(row)),
            milliseconds=row["step"],
            precision="fp32" if row["rung"] == FIRST.name else "bf16",
        )
        for _, row in rungs[rungs["rung"] != "fp8"].iterrows()
    ]
    yield from under_the_roofline(measured_gpu({"": rungs}), timings)


def device_is_not_busier_than_the_step_is_long(rungs: DataFrame) -> Check:
    """The device works for no longer than a step takes."""
    known = rungs[rungs["device_busy"].notna()]
    known = known.assign(busy=known["device_busy"] / known["step"])
    complaints = [f"{named(row)}: {row['busy']:.0%} busy" for _, row in known.iterrows() if row["busy"] > 1 + BUSIER]
    summary = f"{len(known)} steps; {known['busy'].max():.1%} at most, allowed {1 + BUSIER:.0%}"
    return conclude(
        "in no step of the ladder does the device work for longer than the step takes",
        complaints,
        len(known),
        summary if len(known) else "busy time is measured on GPUs only",
    )


def precision_is_what_it_says(table: DataFrame) -> Check:
    """Rungs in bf16 have bf16 weights, or fp32 ones with attention in bf16; fp32 is fp32, with TF32 seen to be off."""
    rows = table[table["metric"].isin(["weights_dtype", "attention_dtype"]) & (table["status"] == "ok")]
    complaints = []
    for _, row in rows.iterrows():
        precision = RUNGS[row["rung"]].precision
        wide = precision == "fp32" or (precision == "autocast" and row["metric"] == "weights_dtype")
        if row["value"] != ("float32" if wide else "bfloat16") or row["tf32"]:
            complaints.append(f"{named(row)}: {row['metric']} {row['value']}{', TF32 on' if row['tf32'] else ''}")
    sentence = "the ladder's rungs compute in the precision that they name, with TF32 off"
    return conclude(sentence, complaints, len(rows), f"{len(rows)} types")


@check("{n} steps", "counted on GPUs only")
def memory_holds_the_state(table: DataFrame) -> Evidence:
    """Peak memory of a rung is between the closed form of weights, gradients and moments and the device's memory.

    Gradients count where they outlive the backward pass.
    """
    for _, row in select(table, metric="peak_memory", status="ok", part="steps").iterrows():
        rung = RUNGS[row["rung"]]
        weights = 2 if rung.precision == "bf16" else 4
        masters = 2 if rung.precision == "bf16" else 0
        gradients = 0 if rung.overlap else weights
        least = (weights + masters + MOMENTS + gradients) * load_of_row(row).weights
        yield from within_memory(row, named(row), least)


def every_rung_learns(table: DataFrame) -> Check:
    """Each rung's loss after training lies within the scatter of fp32 from other seeds; FP8 is not judged."""
    sentence = f"each rung's loss after training is within {SCATTER} standard deviations of fp32's over seeds"
    found = losses(table)
    exact, others = found[found["rung"] == FIRST.name], found[~found["rung"].isin([FIRST.name, "fp8"])]
    if not len(exact) or not len(others):
        return conclude(sentence, [], 0, "no rung was trained")
    loss, std = exact["loss"].iloc[0], exact["std"].iloc[0]
    others = others.assign(away=(others["loss"] - loss).abs() / std)
    complaints = [
        f"{row['rung']}: {row['loss']:.3f}, fp32 {loss:.3f} ± {std:.3f}"
        for _, row in others.iterrows()
        if not row["away"] <= SCATTER
    ]
    return conclude(sentence, complaints, len(others), f"{len(others)} rungs; {others['away'].max():.1f} at most")
