"""Self-checks of times against the GPU's peak rates: no work is done faster than its matmuls allow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pandas import DataFrame, Series

from cs336_systems.accounting.attention import flash_flops
from cs336_systems.experiments.training_ladder import FIRST, FP8
from cs336_systems.measure.gpus import Gpu, gpu_of
from scripts.checks import Case, Evidence, check, name_row
from scripts.views.attention_calls import PASSES
from scripts.views.closed_forms import flops_of
from scripts.views.data import select


@dataclass(frozen=True)
class Work:
    """The work that an experiment times."""

    flops: Callable[[Series], float] = lambda row: flops_of(row, row.get("mode", "train_step"))
    """The operations of a row's matmuls."""
    ceiling: Callable[[Gpu, Series], float] = lambda peak, row: peak.flops(row["precision"])
    """The most FLOP/s of a row's precision."""
    metrics: tuple[str, ...] = ("step",)
    wanted: Mapping[str, str] = field(default_factory=dict)
    """The values that the experiment's rows must have."""


def pass_flops(row: Series) -> float:
    """The operations of a pass of attention."""
    shape = row["batch_size"], row.get("heads", 1), row["sequence"], row["d"]
    return flash_flops(row["metric"], *shape, causal=row.get("causal", False))


def attention_ceiling(peak: Gpu, row: Series) -> float:
    """The most FLOP/s that attention can reach: in fp32 also with six bf16 products, which are as accurate."""
    return peak.bf16 if row["precision"] == "bf16" else max(peak.fp32, peak.bf16 / 6)


def rung_ceiling(peak: Gpu, row: Series) -> float:
    """The most FLOP/s of a rung of the training ladder; FP8's is not listed."""
    return math.inf if row["rung"] == FP8.name else peak.flops("fp32" if row["rung"] == FIRST.name else "bf16")


WORK = {
    **dict.fromkeys(("end_to_end", "checkpointing", "kernel_profile"), Work()),
    **dict.fromkeys(("data_parallel", "optimizer_sharding", "fsdp"), Work()),
    **dict.fromkeys(("attention", "flash"), Work(pass_flops, attention_ceiling, tuple(PASSES))),
    "training_ladder": Work(lambda row: flops_of(row, causal=True), rung_ceiling, wanted={"part": "steps"}),
}


@check("{n} times; the closest reaches {most:.0%}", "no peak rate is listed for this GPU, or for a CPU")
def nothing_beats_the_roofline(tables: Mapping[str, DataFrame]) -> Evidence:
    """No step, and no attention pass, is faster than its matmuls at the data sheet's dense peak."""
    for name, work in WORK.items():
        for metric in work.metrics:
            for _, row in select(tables[name], metric=metric, **work.wanted).iterrows():
                if peak := gpu_of(row["gpu"]):
                    share = work.flops(row) / (row["median"] / 1e3) / work.ceiling(peak, row)
                    yield Case(name_row(name, row), share > 1, f"{metric} {share:.0%} of the peak", share)
