"""Facts fitted to recorded steps: weights of the time model, and the closed forms' errors, by kind of step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cs336_systems.accounting.setting import Setting

PATH = Path(__file__).with_name("recorded.json")
MEMORY_WITHIN, TIME_WITHIN = 0.02, 0.15
"""Errors that the closed forms are to keep."""
ELSEWHERE = 0.3
"""Error of a step's time to expect on a GPU without recorded rows, whose rates are taken from its data sheet."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """The error of a closed form over recorded cells, relative to what was measured."""

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
    """Of the time model, by kind of work."""
    launch_seconds: float
    """In which the host launched a kernel, in steps that it paced."""
    memory_errors: Mapping[str, Error]
    """By kind of step."""
    time_errors: Mapping[str, Error]
    """By kind of step, of steps that the device paces."""
    held_out: Mapping[str, Error]
    """Of the time of each model size, with weights fitted to the others."""
    others: tuple["Recorded", ...] = ()
    """Other recorded GPU models, with the same weights, which were not fitted to them."""


@cache
def recorded() -> Recorded:
    """Facts from the recorded H200."""
    return read(json.loads(PATH.read_text(encoding="utf-8")))


def read(content: Mapping[str, Any]) -> Recorded:
    """Facts as `scripts.calibration.rates` writes them."""
    errors = {
        name: {kind: Error(**error) for kind, error in content[name].items()}
        for name in ("memory_errors", "time_errors", "held_out")
    }
    rest = {key: value for key, value in content.items() if key != "others"}
    others = tuple(read({**rest, "held_out": {}, **other}) for other in content.get("others", ()))
    return Recorded(**{**rest, **errors, "others": others})


def kind(setting: Setting) -> str:
    """The kind of step by which its errors are known: how ranks share their work, or else how one computes."""
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
