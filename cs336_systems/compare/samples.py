"""Times of other tools: JSON of nvbench and of pytest-benchmark, and a CSV with a name and seconds per line."""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cs336_systems.compare.statistics import Time, time_of

FORMATS = "a JSON file of nvbench or pytest-benchmark, or a CSV file with the columns name and seconds"
LARGEST = 256 * 2**20
"""Bytes of the largest file that is read."""
NO_TIMES = (LookupError, TypeError, AttributeError, UnicodeError, RecursionError, json.JSONDecodeError, csv.Error)
"""Exceptions that reading a file of another kind raises."""
MEAN, NOISE, COUNT = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative", "nv/cold/sample_size"
"""Tags of nvbench's summaries."""


@dataclass(frozen=True)
class Samples:
    """The times of one file."""

    name: str
    """The text that named the file."""
    path: Path
    times: Mapping[str, Time]
    """Times in ms, by name."""
    on_gpu: bool
    """Whether a GPU was timed, on its own clock."""
    about: Mapping[str, str]
    """The file's information on the machine."""


def read_samples(name: str) -> Samples:
    """Read a file.

    Raises:
        ValueError: its format is unknown, or its times are not positive numbers, in one sentence.
    """
    path = Path(name)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has more than {LARGEST // 2**20} MiB; allowed: {FORMATS}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return Samples(name, path, dict(_times(name, _of_csv(text))), on_gpu=False, about={})
        content = json.loads(text)
        benchmarks = content["benchmarks"]
        if benchmarks and "states" in benchmarks[0]:
            devices = ", ".join(str(device["name"]) for device in content.get("devices", []))
            return Samples(name, path, dict(_of_nvbench(name, content)), on_gpu=True, about={"gpu": devices})
        samples = {str(each["fullname"]): each["stats"]["data"] for each in benchmarks}
        return Samples(name, path, dict(_times(name, samples)), on_gpu=False, about=_machine(content))
    except NO_TIMES as error:
        missing = f": it lacks {error}" if isinstance(error, KeyError) else ""
        raise ValueError(f"{name} is not a file of times{missing}; allowed: {FORMATS}") from None


def _times(name: str, samples: Mapping[str, Iterable[Any]]) -> Iterator[tuple[str, Time]]:
    """Summaries of samples in seconds."""
    if not samples:
        raise ValueError(f"{name} has no times; allowed: at least one")
    for key, values in samples.items():
        seconds = [_positive(name, key, value) for value in values]
        yield key, time_of(1e3 * median(seconds), seconds)


def _positive(name: str, key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{name}: a time of {key!r} is {str(value)[:40]!r}; allowed: seconds above 0")
    return number


def _of_csv(text: str) -> Mapping[str, list[str]]:
    samples = defaultdict(list)
    for line in csv.DictReader(text.splitlines()):
        samples[line["name"]].append(line["seconds"])
    return samples


def _of_nvbench(name: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Time]]:
    """Times of each measured state, from the mean of its samples, their number and their noise."""
    for benchmark in content["benchmarks"]:
        for state in benchmark["states"]:
            values = {
                each["tag"]: {data["name"]: data["value"] for data in each["data"]} for each in state["summaries"]
            }
            if state.get("is_skipped") or MEAN not in values:
                continue
            key = f"{benchmark['name']} {state['name']}"
            mean = _positive(name, key, values[MEAN]["value"])
            noise = float(values.get(NOISE, {}).get("value", 0))
            yield key, Time(1e3 * mean, int(values.get(COUNT, {}).get("value", 1)), max(0.0, noise))


def _machine(content: Mapping[str, Any]) -> dict[str, str]:
    """pytest-benchmark's information on the machine."""
    machine = content.get("machine_info", {})
    said = {
        "cpu": machine.get("cpu", {}).get("brand_raw", ""),
        "python": machine.get("python_version", ""),
        "git_commit": content.get("commit_info", {}).get("id", ""),
    }
    return {name: str(value) for name, value in said.items() if value}
