"""Self-checks of the dtypes under autocast, against the rules that PyTorch documents for them."""

from collections.abc import Iterator, Mapping

from pandas import DataFrame

from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from scripts.checks import Check, conclude

LOWERED = {"fp16": "float16", "bf16": "bfloat16"}
ON_GPU_IN_FP32 = "norm_output"
"""Autocast keeps layer norm in fp32 on a GPU; on a CPU it has no rule, and the norm follows its input."""
AS_PARAMETERS = ("parameters", "loss", "gradients")
"""fp32 whatever the precision: cross-entropy is among what autocast keeps, and a gradient has its parameter's type."""


def checks(tables: Mapping[str, DataFrame]) -> Iterator[Check]:
    """Every check of the experiment."""
    yield dtypes_are_the_documented(tables["autocast_dtypes"])


def dtypes_are_the_documented(table: DataFrame) -> Check:
    """Matrix multiplies run in the lower precision; parameters, losses and gradients stay fp32."""
    rows = table[table["metric"].isin(list(AutocastDtypes.metrics)) & (table["status"] == "ok")]
    complaints = []
    for _, row in rows.iterrows():
        in_fp32 = row["metric"] in AS_PARAMETERS or (row["metric"] == ON_GPU_IN_FP32 and row["gpu"])
        expected = "float32" if in_fp32 else LOWERED[row["autocast"]]
        if row["value"] != expected:
            complaints.append(f"{row['autocast']}: {row['metric']} {row['value']}, expected {expected}")
    check = "dtypes under autocast are those of PyTorch's rules"
    return conclude(check, complaints, len(rows), f"{len(rows)} tensors")
