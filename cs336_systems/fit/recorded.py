"""Facts fitted to recorded steps: weights of the time model, and the closed forms' errors, by kind of step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cs336_systems.accounting.setting import Setting

PATH = Path(__file__).with_name("recorded.json")
MEMORY_WITHIN, TIME_WITHIN = 0.02, 0.15
"""Maximum errors of the closed forms."""
ELSEWHERE = 0.3
"""Expected error of a step's time on a GPU without recorded rows, with rates from its data sheet."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """The error of a closed form over recorded cells, relative to the measurements."""

    cells: int
    median: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Facts about one GPU model."""

    gpu: str
    """Its name, as the driver spells it."""
    memory: int
    """Bytes that the driver reports."""
    weights: Mapping[str, float]
    """Weights of the time model, by kind of work."""
    launch_seconds: float
    """Seconds per kernel launch on the host, in host-bound steps."""
    memory_errors: Mapping[str, Error]
    """Memory errors by kind of step."""
    time_errors: Mapping[str, Error]
    """Time errors by kind of step, for device-bound steps."""
    others: tuple["Recorded", ...] = ()
    """Errors on other recorded GPU models, with the same weights, which were not fitted to them."""


@cache
def recorded() -> Recorded:
    """Facts from the recorded H200."""
    return read(json.loads(PATH.read_text(encoding="utf-8")))


def read(content: Mapping[str, Any]) -> Recorded:
    """Read the facts written by `scripts.calibration.rates`."""
    others = [{**content, "others": (), **other} for other in content.get("others", ())]
    return TypeAdapter(Recorded).validate_python({**content, "others": others})


def kind(setting: Setting) -> str:
    """The kind of step for which errors are recorded: how ranks share their work, or else how one rank computes."""
    if setting.rebuilds:
        return "PyTorch's DDP"
    if setting.scheme == "alone" or setting.recomputed:
        return kind_alone(setting)
    return {"sharded optimizer": "ZeRO-1"}.get(setting.scheme, setting.scheme)


def expected_error(setting: Setting, errors: Mapping[str, Error]) -> Error | None:
    """The largest error of the kinds of step that a setting combines; None if one of them is not recorded."""
    kinds = dict.fromkeys((kind(setting), kind_alone(setting)))
    known = [errors[name] for name in kinds if name in errors]
    return max(known, key=lambda error: error.most) if len(known) == len(kinds) else None


def kind_alone(setting: Setting) -> str:
    """How one rank computes."""
    if setting.recomputed:
        return "fused, recomputed"
    if setting.segment:
        return "checkpointed"
    if setting.mode in ("inference", "forward"):
        return "forward"
    if setting.fp8:
        return "FP8"
    if setting.passes == "eager" and setting.precision == "bf16":
        return "bf16 weights"
    return {"eager": "plain", "compiled": "compiled", "fused": "fused"}[setting.passes]
