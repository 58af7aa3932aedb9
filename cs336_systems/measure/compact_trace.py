"""Reduce a profiler's trace to the events that readers and the attribution of kernels need: a tenth of its size.

The result opens in Perfetto (ui.perfetto.dev) and in Chrome (chrome://tracing). No torch here.
"""

import bisect
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cs336_systems.measure.trace import ENGINE, LAUNCHES, ON_DEVICE, Event

KEPT_ARGUMENTS = ("stream", "correlation", "grid", "block", "bytes")
NAMES = "M"
"""Phase of the events that name processes and threads."""


def compact(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Keep kernels, their launches, the operators around them, ranges, and the arrows between these.

    All operators of a CPU's trace are kept, since they did the work.
    """
    kept: list[Event] = []
    operators: list[Event] = []
    flows: dict[str, list[Event]] = defaultdict(list)
    executed = [event for event in events if event.get("cat") in ON_DEVICE]
    numbers = {event["args"].get("correlation") for event in executed}
    launched: dict[Any, list[float]] = defaultdict(list)
    for event in events:
        category = event.get("cat")
        if category in ("user_annotation", "gpu_user_annotation") or event["ph"] == NAMES:
            kept.append(event)
        elif category in LAUNCHES and event.get("args", {}).get("correlation") in numbers:
            kept.append(event)
            launched[event["tid"]].append(event["ts"])
        elif category == "cpu_op":
            operators.append(event)
        elif category in ("fwdbwd", "ac2g"):
            flows[category].append(event)
    for times in launched.values():
        times.sort()
    if executed:
        operators = _around_launches(operators, launched, flows["fwdbwd"])
    places = {(event["tid"], event["ts"]) for event in operators}
    whole = {flow["id"] for flow in flows["fwdbwd"] if flow["ph"] == "f" and (flow["tid"], flow["ts"]) in places}
    kept += [*executed, *operators]
    kept += [flow for flow in flows["fwdbwd"] if flow["id"] in whole]
    kept += [flow for flow in flows["ac2g"] if flow["id"] in numbers]
    begin = min((event["ts"] for event in kept if event["ph"] != NAMES), default=0.0)
    return [_slim(event, begin) for event in sorted(kept, key=lambda event: event.get("ts", 0.0))]


def _around_launches(
    operators: Sequence[Event], launched: dict[Any, list[float]], links: Sequence[Event]
) -> list[Event]:
    """Select operators that launched something, and those that link an autograd node to the operator that made it."""
    launching = [event for event in operators if _holds_any(event, launched[event["tid"]])]
    ends: dict[Any, list[float]] = defaultdict(list)
    for link in sorted(links, key=lambda link: link["ts"]):
        if link["ph"] == "f":
            ends[link["tid"]].append(link["ts"])
    nodes = {(event["tid"], event["ts"]) for event in launching}
    for event in launching:
        if event["name"].startswith(ENGINE) and _holds_any(event, times := ends[event["tid"]]):
            # The node itself begins slightly after the engine's event around it.
            nodes.add((event["tid"], times[bisect.bisect_left(times, event["ts"])]))
    wanted = {link["id"] for link in links if link["ph"] == "f" and (link["tid"], link["ts"]) in nodes}
    nodes |= {(link["tid"], link["ts"]) for link in links if link["ph"] == "s" and link["id"] in wanted}
    return [event for event in operators if (event["tid"], event["ts"]) in nodes]


def _holds_any(event: Event, times: Sequence[float]) -> bool:
    """Whether one of the times, in order, lies within an event."""
    index = bisect.bisect_left(times, event["ts"])
    return index < len(times) and times[index] <= event["ts"] + event["dur"]


def _slim(event: Event, begin: float) -> dict[str, Any]:
    slim = {key: value for key, value in event.items() if key != "args"}
    if event["ph"] == NAMES:
        return slim | {"ts": 0, "args": event["args"]}
    slim["ts"] = round(event["ts"] - begin, 3)
    if arguments := {key: event["args"][key] for key in KEPT_ARGUMENTS if key in event.get("args", ())}:
        slim["args"] = arguments
    return slim


def write_events(path: Path, events: Sequence[Event], note: str = "") -> None:
    """Write a compressed trace; the same events give the same bytes. The note gives the reason if there are none."""
    content = {"displayTimeUnit": "ms", "otherData": {"note": note}, "traceEvents": events}
    text = json.dumps(content, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
