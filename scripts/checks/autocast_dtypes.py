"""Self-checks of the dtypes under autocast, against the rules that PyTorch documents for them."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from scripts.checks import Check, Evidence, check

LOWERED = {"fp16": "float16", "bf16": "bfloat16"}
ON_GPU_IN_FP32 = "norm_output"
"""Autocast keeps layer norm in fp32 on a GPU; on a CPU it has no rule, and the norm follows its input."""
AS_PARAMETERS = ("parameters", "loss", "gradients")
"""fp32 whatever the precision: cross-entropy is among what autocast keeps, and a gradient has its parameter's type."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    yield dtypes_are_the_documented(tables["autocast_dtypes"])


@check("{n} tensors")
def dtypes_are_the_documented(table: DataFrame) -> Evidence:
    """Dtypes under autocast are those of PyTorch's rules."""
    rows = table[table["metric"].isin(list(AutocastDtypes.metrics)) & (table["status"] == "ok")]
    for _, row in rows.iterrows():
        yield 1
        in_fp32 = row["metric"] in AS_PARAMETERS or (row["metric"] == ON_GPU_IN_FP32 and row["gpu"])
        expected = "float32" if in_fp32 else LOWERED[row["autocast"]]
        if row["value"] != expected:
            yield f"{row['autocast']}: {row['metric']} {row['value']}, expected {expected}"
