"""Self-checks of the dtypes under autocast, against the rules that PyTorch documents for them."""

from pandas import DataFrame

from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from scripts.checks import Case, Evidence, check

LOWERED = {"fp16": "float16", "bf16": "bfloat16"}
ON_GPU_IN_FP32 = "norm_output"
"""Autocast keeps layer norm in fp32 on a GPU; on a CPU it has no rule, and the norm follows its input."""
AS_PARAMETERS = ("parameters", "loss", "gradients")
"""fp32 whatever the precision: cross-entropy is among what autocast keeps, and a gradient has its parameter's type."""


@check("{n} tensors")
def dtypes_are_the_documented(autocast_dtypes: DataFrame) -> Evidence:
    """Dtypes under autocast are those of PyTorch's rules."""
    rows = autocast_dtypes[
        autocast_dtypes["metric"].isin(list(AutocastDtypes.metrics)) & (autocast_dtypes["status"] == "ok")
    ]
    for _, row in rows.iterrows():
        in_fp32 = row["metric"] in AS_PARAMETERS or (row["metric"] == ON_GPU_IN_FP32 and row["gpu"])
        expected = "float32" if in_fp32 else LOWERED[row["autocast"]]
        yield Case(row["autocast"], row["value"] != expected, f"{row['metric']} {row['value']}, expected {expected}")
