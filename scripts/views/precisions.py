"""Steps in fp32 and in bf16 side by side."""

from pandas import DataFrame

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.record.rows import parameters
from scripts.views.data import select

BOTH = "forward + backward"
"""The passes by which precisions are compared: the optimizer works on fp32 weights in both."""
DEVICE = f"{BOTH}, busy"
"""The device's time in them."""


def precision_pairs(steps: DataFrame) -> DataFrame:
    """One row per cell measured in both precisions, with its parameters, small to large.

    Columns: `fp32` and `bf16`, the time of BOTH, ms; `gain`, their ratio; `device_fp32`, `device_bf16` and
    `device_gain`, the same of the device's time, NaN on a CPU; `host_bound`, whether either step is.
    """
    cell = [name for name in parameters(EndToEnd) if name != "precision"]
    sides = [select(steps, precision=name) for name in ("fp32", "bf16")]
    both = sides[0].merge(sides[1], on=[*cell, "label"], suffixes=("_fp32", "_bf16"), how="inner")
    found = both[[*cell, "label"]].copy()
    for name in ("fp32", "bf16"):
        found[name], found[f"device_{name}"] = both[f"{BOTH}_{name}"], both[f"{DEVICE}_{name}"]
        found[f"forward_{name}"] = both[f"forward_{name}"]
    found["gain"] = found["fp32"] / found["bf16"]
    found["device_gain"] = found["device_fp32"] / found["device_bf16"]
    found["host_bound"] = both["host_bound_fp32"].astype(bool) | both["host_bound_bf16"].astype(bool)
    return found
