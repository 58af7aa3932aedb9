"""Self-checks of attention measured by itself, plain and against other implementations."""

from collections.abc import Callable
from functools import partial

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops, inputs_and_gradients_bytes, plain_bytes_before_backward
from cs336_systems.implementations import label
from cs336_systems.measure.gpus import Gpu
from scripts.checks import Evidence, check, under_the_roofline, within_memory
from scripts.views.attention_calls import PASSES
from scripts.views.data import measured_gpu, select


@check("{n} timings; the closest reaches {most:.0%}")
def nothing_beats_the_roofline(attention: DataFrame, flash: DataFrame) -> Evidence:
    """No attention pass is faster than its matrix multiplies at the data sheet's dense peak."""
    gpu = measured_gpu({"attention": attention, "flash": flash})
    for name, table in ((name_plain, attention.assign(heads=1, causal=False)), (name_flash, flash)):
        rows = table[table["metric"].isin(PASSES) & (table["status"] == "ok")]
        yield from under_the_roofline(gpu, rows, partial(name_pass, name), flops, ceiling=ceiling)


def flops(row: Series) -> float:
    """The operations of a timed pass."""
    shape = row["batch_size"], row["heads"], row["sequence"], row["d"]
    return flash_flops(row["metric"], *shape, causal=row["causal"])


def ceiling(peak: Gpu, precision: str) -> float:
    """The most FLOP/s that attention can reach: in fp32 also with six bf16 products, which are as accurate."""
    return peak.bf16 if precision == "bf16" else max(peak.fp32, peak.bf16 / 6)


@check("{n} cells", "memory is counted on GPUs only")
def memory_holds_the_tensors(attention: DataFrame, flash: DataFrame) -> Evidence:
    """Attention's memory is between the closed form of what it must hold and the device's memory."""
    before_backward = select(attention, metric="memory_before_backward", compiled=False, precision="fp32")
    for _, row in before_backward.iterrows():
        least = plain_bytes_before_backward(row["batch_size"], row["sequence"], row["d"])
        yield within_memory(row, name_plain(row), least, digits=2)
    for _, row in select(flash, metric="peak_memory").iterrows():
        heads = row["batch_size"] * row["heads"]
        least = inputs_and_gradients_bytes(heads, row["sequence"], row["d"], row["precision"])
        yield within_memory(row, name_flash(row), least, digits=2)


def name_pass(name: Callable[[Series], str], row: Series) -> str:
    """A pass of a cell in words."""
    return f"{name(row)}, {row['metric']}"


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
