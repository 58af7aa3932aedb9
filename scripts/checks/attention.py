"""Self-checks of attention measured by itself, plain and against other implementations."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops, inputs_and_gradients_bytes, plain_bytes_before_backward
from cs336_systems.implementations import label
from cs336_systems.measure.gpus import Gpu
from scripts.checks import Check, Timing, conclude, outside, under_the_roofline
from scripts.views.attention_calls import PASSES
from scripts.views.data import measured_gpu, select


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiments `attention` and `flash`."""
    plain, flash = tables["attention"], tables["flash"]
    yield nothing_beats_the_roofline(plain, flash)
    yield memory_holds_the_tensors(plain, flash)


def nothing_beats_the_roofline(plain: DataFrame, flash: DataFrame) -> Check:
    """No pass is faster than its unmasked products at the GPU's dense peak."""
    check = "no attention pass is faster than its matrix multiplies at the data sheet's dense peak"
    timings = [
        Timing(
            cell=f"{name_plain(row)}, {row['metric']}",
            flops=flash_flops(row["metric"], row["batch_size"], 1, row["sequence"], row["d"], causal=False),
            milliseconds=row["median"],
            precision=row["precision"],
        )
        for _, row in timed(plain).iterrows()
    ] + [
        Timing(
            cell=f"{name_flash(row)}, {row['metric']}",
            flops=flash_flops(
                row["metric"], row["batch_size"], row["heads"], row["sequence"], row["d"], causal=row["causal"]
            ),
            milliseconds=row["median"],
            precision=row["precision"],
        )
        for _, row in timed(flash).iterrows()
    ]
    return under_the_roofline(check, measured_gpu({"attention": plain, "flash": flash}), timings, ceiling)


def timed(table: DataFrame) -> DataFrame:
    """The rows that time a pass."""
    return table[table["metric"].isin(PASSES) & (table["status"] == "ok")]


def ceiling(peak: Gpu, precision: str) -> float:
    """The most FLOP/s that attention can reach: in fp32 also with six bf16 products, which are as accurate."""
    return peak.bf16 if precision == "bf16" else max(peak.fp32, peak.bf16 / 6)


def memory_holds_the_tensors(plain: DataFrame, flash: DataFrame) -> Check:
    """Memory is no less than what must be there, and no more than the device has."""
    check = "attention's memory is between the closed form of what it must hold and the device's memory"
    complaints = []
    before_backward = select(plain, metric="memory_before_backward", status="ok", compiled=False, precision="fp32")
    peaks = select(flash, metric="peak_memory", status="ok")
    for _, row in before_backward.iterrows():
        least = plain_bytes_before_backward(row["batch_size"], row["sequence"], row["d"])
        complaints += outside(row, name_plain(row), least, digits=2)
    for _, row in peaks.iterrows():
        least = inputs_and_gradients_bytes(
            row["batch_size"] * row["heads"], row["sequence"], row["d"], row["precision"]
        )
        complaints += outside(row, name_flash(row), least, digits=2)
    examined = len(before_backward) + len(peaks)
    summary = f"{examined} cells" if examined else "memory is counted on GPUs only"
    return conclude(check, complaints, examined, summary)


def name_plain(row: Series) -> str:
    """A cell of `attention` in words."""
    compiled = "compiled" if row["compiled"] else "eager"
    return f"plain attention, {row['sequence']} tokens, d {row['d']}, {row['precision']}, {compiled}"


def name_flash(row: Series) -> str:
    """A cell of `flash` in words."""
    batch = f"{row['batch_size']} × " if row["batch_size"] > 1 else ""
    mask = "" if row["causal"] else ", not causal"
    shape = f"{batch}{row['heads']} × {row['sequence']} tokens, d {row['d']}"
    return f"{label(row['implementation'])}, {shape}, {row['precision']}{mask}"
