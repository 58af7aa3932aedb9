"""Pairs of unmodified runs: the same program, timed in two launches on GPUs of the same model with the same software.

They come from the git history of recorded/, and from folders of launches of the same jobs.
"""

import contextlib
import csv
import io
import itertools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cs336_systems.compare.bounds import bound, device_bound
from cs336_systems.compare.cells import Cell, Key, cells_of, top_clock
from cs336_systems.compare.comparison import matched
from cs336_systems.compare.statistics import Time
from cs336_systems.experiments.flash import contender_of
from cs336_systems.experiments.registry import KINDS
from cs336_systems.record.revisions import same_code
from cs336_systems.record.rows import Provenance, row_model
from cs336_systems.record.validation import Row

REPLACED = ("2026-11-22T14:52:41+00:00", "2026-11-26T23:04:02+00:00")
"""Recordings that were replaced because self-checks found that their GPU was slowed down, or their steps uncompiled."""
SETTLED = "2026-11-21T10"
"""Earlier recordings have no clocks, and their steps were timed by other code."""
VERSIONS = ("gpu", "driver", "cuda", "cudnn", "torch", "torch_files", "triton")


@dataclass(frozen=True)
class Pair:
    """One row of a cell in two runs."""

    cell: str
    metric: str
    bound: str
    runs: tuple[str, str]
    """When each file was written, which identifies the runs."""
    a: Time
    b: Time


def recorded_versions(folder: str) -> Iterator[tuple[Row, ...]]:
    """The rows of each version of each CSV file in git's history below a folder that can still be read."""
    log = ["git", "log", "--format=", "--raw", "--no-abbrev", "--no-renames", "-m", "--", folder]
    lines = subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines()
    raw = re.compile(r"/raw/(?!card/).*\.csv$")  # Runs of the card were on different GPUs.
    blobs = {line.split()[3]: None for line in lines if raw.search(line)}
    for blob in blobs:
        if not int(blob, 16):
            continue
        content = subprocess.run(["git", "cat-file", "blob", blob], capture_output=True, check=True).stdout
        yield tuple(parsed(content.decode("utf-8-sig")))


def parsed(text: str) -> Iterator[Row]:
    """The rows of a CSV's text, typed, without those of experiments, parameters and contenders that no longer exist."""
    for record in csv.DictReader(io.StringIO(text)):
        with contextlib.suppress(KeyError, ValueError):
            yield typed(record)


def typed(record: dict[str, str]) -> Row:
    """A row of a CSV file; a KeyError or ValueError if it cannot be read any more."""
    kind = KINDS[record["experiment"]]
    later = {**kind.added_later, **Provenance.added_later}
    record.setdefault("revisions", record.get("source_digest", ""))  # the name of the column until November 2026
    known = {key: value for key, value in record.items() if value != "" and key in row_model(kind).model_fields}
    return row_model(kind).model_validate({**later, **known})


def same_program(a: Row, b: Row) -> bool:
    """Whether two rows of a cell timed the same code: of the same revisions, or PyTorch's own."""
    if any(getattr(a, name) != getattr(b, name) for name in VERSIONS if getattr(a, name) and getattr(b, name)):
        return False
    implementation = getattr(a, "implementation", "")
    if implementation == "flex_autotuned":
        return False  # PyTorch chooses its tiles in each launch by timing them.
    if same_code(getattr(a, "revisions", ""), getattr(b, "revisions", "")):
        return True
    if a.experiment == "flash":
        contender = contender_of(implementation)
        same_package = not contender.package or getattr(a, "flash_attn", "") == getattr(b, "flash_attn", "")
        return same_package and (contender.foreign or contender.name == "plain")
    # Not next to changed attention of ours: its data in the caches affects other kernels.
    others = ("attention", "all_reduce", "checkpointing", "end_to_end", "kernel_profile")
    return a.experiment in others and getattr(a, "attention", "plain") in ("plain", "sdpa")


def pairs_of(runs: Iterable[Sequence[Row]]) -> list[Pair]:
    """The pairs of consecutive runs of each cell, for its compared device-bound rows."""
    by_key: dict[Key, list[tuple[Cell, float | None]]] = defaultdict(list)
    for rows in runs:
        cells = cells_of(rows)
        top = top_clock(cells.values())
        for key, cell in cells.items():
            by_key[key].append((cell, top))
    pairs = []
    for versions in by_key.values():
        versions.sort(key=lambda each: each[0].rows[0].utc)
        for (cell_a, top_a), (cell_b, top_b) in itertools.pairwise(versions):
            utcs = cell_a.rows[0].utc, cell_b.rows[0].utc
            if len({*utcs, *REPLACED}) < 2 + len(REPLACED) or min(utcs) < SETTLED:
                continue
            for _, a, _, b in matched(cell_a, cell_b):
                if not same_program(a, b) or (a.gpu and not (device_bound(cell_a, a) and device_bound(cell_b, b))):
                    continue
                times = cell_a.time(a, top_a), cell_b.time(b, top_b)
                pairs.append(Pair(cell_a.name, a.metric, bound(cell_b, b), (a.utc, b.utc), *times))
    return pairs


def from_history() -> list[Pair]:
    """The pairs in the history of the recorded results."""
    return pairs_of(recorded_versions("recorded"))
