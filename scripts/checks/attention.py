"""Self-checks of attention measured by itself, plain and against other implementations."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops, inputs_and_gradients_bytes, plain_bytes_before_backward
from cs336_systems.implementations import label
from cs336_systems.measure.gpus import Gpu
from scripts.checks import Check, Evidence, Timing, check, under_the_roofline, within_memory
from scripts.views.attention_calls import PASSES
from scripts.views.data import measured_gpu, select


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiments `attention` and `flash`."""
    plain, flash = tables["attention"], tables["flash"]
    yield nothing_beats_the_roofline(plain, flash)
    yield memory_holds_the_tensors(plain, flash)


@check("{n} timings; the closest reaches {most:.0%}")
def nothing_beats_the_roofline(plain: DataFrame, flash: DataFrame) -> Evidence:
    """No attention pass is faster than its matrix multiplies at the data sheet's dense peak."""
    plain = plain.assign(heads=1, causal=False)
    timings = [
        Timing(
            cell=f"{name(row)}, {row['metric']}",
            flops=flash_flops(
                row["metric"], row["batch_size"], row["heads"], row["sequence"], row["d"], causal=row["causal"]
            ),
            milliseconds=row["median"],
            precision=row["precision"],
        )
        for name, table in ((name_plain, plain), (name_flash, flash))
        for _, row in table[table["metric"].isin(PASSES) & (table["status"] == "ok")].iterrows()
    ]
    yield from under_the_roofline(measured_gpu({"attention": plain, "flash": flash}), timings, ceiling)


def ceiling(peak: Gpu, precision: str) -> float:
    """The most FLOP/s that attention can reach: in fp32 also with six bf16 products, which are as accurate."""
    return peak.bf16 if precision == "bf16" else max(peak.fp32, peak.bf16 / 6)


@check("{n} cells", "memory is counted on GPUs only")
def memory_holds_the_tensors(plain: DataFrame, flash: DataFrame) -> Evidence:
    """Attention's memory is between the closed form of what it must hold and the device's memory."""
    before_backward = select(plain, metric="memory_before_backward", status="ok", compiled=False, precision="fp32")
    for _, row in before_backward.iterrows():
        least = plain_bytes_before_backward(row["batch_size"], row["sequence"], row["d"])
        yield from within_memory(row, name_plain(row), least, digits=2)
    for _, row in select(flash, metric="peak_memory", status="ok").iterrows():
        least = inputs_and_gradients_bytes(
            row["batch_size"] * row["heads"], row["sequence"], row["d"], row["precision"]
        )
        yield from within_memory(row, name_flash(row), least, digits=2)


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
