"""The fitted run-to-run variation of GPUs and of CPUs."""

import json
from functools import cache
from pathlib import Path
from typing import Literal

from cs336_systems.compare.statistics import RunToRun

FITTED = Path(__file__).with_name("run_to_run.json")
"""Coefficients that `python -m scripts.calibration.run_to_run` fitted to pairs of unchanged runs."""
COEFFICIENTS = ("base", "spread", "clock", "typical_spread")


@cache
def run_to_run(device: Literal["gpu", "cpu"]) -> RunToRun:
    """The model of a kind of device."""
    entry = json.loads(FITTED.read_text(encoding="utf-8"))[device]
    return RunToRun(**{name: entry[name] for name in COEFFICIENTS})
