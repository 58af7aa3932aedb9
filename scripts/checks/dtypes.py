"""Self-checks of the dtypes of the computations."""

from collections.abc import Callable, Mapping

from pandas import DataFrame, Series

from cs336_systems.experiments.training_ladder import RUNGS
from scripts.checks import Case, Cases, check, name_row
from scripts.views.data import select

NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


EXPECTED: Mapping[tuple[str, str], Callable[[Series], str]] = {
    # Autocast keeps cross-entropy in fp32, and a gradient has its parameter's dtype.
    **{("autocast_dtypes", metric): lambda row: "fp32" for metric in ("parameters", "loss", "gradients")},
    **{("autocast_dtypes", metric): lambda row: str(row["autocast"]) for metric in ("fc1_output", "logits")},
    # It keeps layer norm's output in fp32 on a GPU, and has no rule on a CPU.
    ("autocast_dtypes", "norm_output"): lambda row: "fp32" if row["gpu"] else str(row["autocast"]),
    ("end_to_end", "logits_dtype"): lambda row: str(row["precision"]),
    # A rung under autocast computes in bf16 on fp32 weights.
    ("training_ladder", "attention_dtype"): lambda row: "fp32" if RUNGS[row["rung"]].precision == "fp32" else "bf16",
    ("training_ladder", "weights_dtype"): lambda row: "bf16" if RUNGS[row["rung"]].precision == "bf16" else "fp32",
}
"""The required precision of a row's dtype, by experiment and metric; under autocast, according to PyTorch's documented
rules."""


@check("{n} tensor{s}")
def dtypes_are_the_expected(tables: Mapping[str, DataFrame]) -> Cases:
    """Dtypes match the named precision; under autocast they follow PyTorch's rules."""
    for (name, metric), precision in EXPECTED.items():
        for _, row in select(tables[name], metric=metric).iterrows():
            expected = NAMES[precision(row)]
            detail = f"{metric} {row['value']}, expected {expected}"
            yield Case(name_row(name, row), row["value"] != expected, detail)
