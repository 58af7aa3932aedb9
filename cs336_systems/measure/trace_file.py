"""Validation of trace files, which may be damaged or unrelated. No torch here."""

import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cs336_systems.measure.trace import LAUNCHES, ON_DEVICE, WHOLE, read_file
from cs336_systems.record.measurement import STAGES

FLOW = "fwdbwd"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_key(value: Any) -> bool:
    return isinstance(value, int | str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


_ON_HOST = {"name": _is_text, "tid": _is_key, "ts": _is_number}
_ON_DEVICE = {"name": _is_text, "ts": _is_number, "dur": _is_number, "args": _is_mapping}
FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "user_annotation": _ON_HOST,
    "cpu_op": _ON_HOST,
    **dict.fromkeys(LAUNCHES, _ON_HOST),
    **dict.fromkeys(ON_DEVICE, _ON_DEVICE),
    FLOW: {"id": _is_key, "ph": _is_text, "tid": _is_key, "ts": _is_number},
}
"""Fields that each category of events needs for the attribution of kernels."""


def read_trace(path: Path) -> dict[str, Any]:
    """Read a trace of training steps, or the note that says why none was recorded.

    Raises:
        ValueError: the file cannot be read or is not a trace, in one sentence that names the file.
    """
    try:
        content = read_file(path)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        reason = "its end is missing" if isinstance(error, EOFError | json.JSONDecodeError) else error
        raise ValueError(f"{path}: not a complete trace file ({reason})") from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise ValueError(f"{path}: it has no list 'traceEvents'; allowed: a trace that PyTorch's profiler wrote")
    for number, event in enumerate(events):
        if fault := _fault(event):
            raise ValueError(f"{path}: its event {number} {fault}; allowed: a trace that PyTorch's profiler wrote")
    if not events:
        _check_note(path, content)
    elif not any(event.get("cat") == "user_annotation" and event["name"] in (*STAGES, WHOLE) for event in events):
        raise ValueError(f"{path}: it has no range of a training step; allowed: one of {', '.join((*STAGES, WHOLE))}")
    return content


def _check_note(path: Path, content: Mapping[str, Any]) -> None:
    other = content.get("otherData")
    if not isinstance(other, dict) or not _is_text(other.get("note")) or not other["note"]:
        raise ValueError(f"{path}: it has no events, and no note that says why in 'otherData'")


def _fault(event: Any) -> str:
    """Describe an event's first fault; empty if it has none."""
    if not isinstance(event, dict):
        return f"is {str(event)[:40]!r}"
    if not _is_text(event.get("cat", "")):
        return f"has 'cat' {str(event['cat'])[:40]!r}"
    for name, fits in FIELDS.get(event.get("cat", ""), {}).items():
        if not fits(event.get(name)):
            return f"has {name!r} {str(event.get(name))[:40]!r}"
    arguments = event.get("args", {})
    if not _is_number(event.get("dur", 0)) or not _is_mapping(arguments):
        return "has a duration or arguments of another kind"
    if not _is_key(arguments.get("correlation", 0)) or (event.get("cat") in ON_DEVICE and "stream" not in arguments):
        return "lacks the number of its stream or of its launch"
    return ""
