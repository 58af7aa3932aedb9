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
SECONDS = (1e-12, 1e12)
"""The shortest and the longest time."""
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
        if path.suffix.lower() == ".csv":
            return Samples(name, path, _named(name, _times(name, _of_csv(text).items())), on_gpu=False, about={})
        content = json.loads(text, parse_int=float)
        benchmarks = content["benchmarks"]
        if benchmarks and "states" in benchmarks[0]:
            devices = ", ".join(str(device["name"]) for device in content.get("devices") or ())
            return Samples(name, path, _named(name, _of_nvbench(name, content)), on_gpu=True, about={"gpu": devices})
        samples = [(str(each["fullname"]), each["stats"]["data"]) for each in benchmarks]
        return Samples(name, path, _named(name, _times(name, samples)), on_gpu=False, about=_machine(content))
    except NO_TIMES as error:
        missing = f": it lacks {error}" if isinstance(error, KeyError) else ""
        raise ValueError(f"{name} is not a file of times{missing}; allowed: {FORMATS}") from None


def _named(name: str, times: Iterable[tuple[str, Time]]) -> dict[str, Time]:
    """Times by name; refuses a file without any, and a name that occurs twice."""
    named: dict[str, Time] = {}
    for key, time in times:
        if key in named:
            raise ValueError(f"{name} has the name {key!r} twice; allowed: each name once")
        named[key] = time
    if not named:
        raise ValueError(f"{name} has no times; allowed: at least one")
    return named


def _times(name: str, samples: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Time]]:
    """Summaries of samples in seconds."""
    for key, values in samples:
        if not isinstance(values, list) or not values:
            raise ValueError(f"{name}: the times of {key!r} are {str(values)[:40]!r}; allowed: a list of seconds")
        seconds = [_number(name, f"a time of {key!r}", value, SECONDS, "seconds") for value in values]
        yield key, time_of(1e3 * median(seconds), seconds)


def _number(name: str, what: str, value: Any, limits: tuple[float, float], unit: str = "numbers") -> float:
    try:
        number = float(str(value))  # not of True
    except ValueError:
        number = math.nan
    if not limits[0] <= number <= limits[1]:
        allowed = f"{unit} from {limits[0]:g} to {limits[1]:g}"
        raise ValueError(f"{name}: {what} is {str(value)[:40]!r}; allowed: {allowed}")
    return number


def _of_csv(text: str) -> Mapping[str, list[str]]:
    samples = defaultdict(list)
    for line in csv.DictReader(text.splitlines(), skipinitialspace=True):
        samples[line["name"]].append(line["seconds"])
    return samples


def _of_nvbench(name: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Time]]:
    """Times of each measured state, from the mean of its samples, their number and their noise."""
    for benchmark in content["benchmarks"]:
        for state in benchmark["states"] or ():  # nvbench writes null for an empty list
            values = {
                each["tag"]: {data["name"]: data["value"] for data in each["data"]}["value"]
                for each in state["summaries"] or ()
                if each["tag"] in (MEAN, NOISE, COUNT)
            }
            if state.get("is_skipped") or MEAN not in values:
                continue
            key = f"{benchmark['name']} {state['name']}"
            mean = _number(name, f"a time of {key!r}", values[MEAN], SECONDS, "seconds")
            count = _number(name, f"the sample size of {key!r}", values.get(COUNT, 1), (1, 1e12))
            noise = values.get(NOISE)
            if noise is None or str(noise) in ("inf", "nan", "-nan"):  # of too few samples
                count, noise = 1, 0
            spread = _number(name, f"the relative deviation of {key!r}", noise, (0, 1e6))
            yield key, Time(1e3 * mean, int(count), spread)


def _machine(content: Mapping[str, Any]) -> dict[str, str]:
    """pytest-benchmark's information on the machine."""
    places = {
        "cpu": ("machine_info", "cpu", "brand_raw"),
        "python": ("machine_info", "python_version"),
        "git_commit": ("commit_info", "id"),
    }
    about = {}
    for name, keys in places.items():
        value: Any = content
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None  # a project may write its own
        if value:
            about[name] = str(value)
    return about
