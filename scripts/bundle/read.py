"""Read an untrusted bundle: its files are data, and nothing in it is run, imported or fetched."""

import contextlib
import gzip
import json
import re
import resource
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import psutil

from cs336_systems.measure.trace_file import read_trace
from cs336_systems.plan import Plan, read_plan
from cs336_systems.record.rows import digest_path
from cs336_systems.record.validation import Row
from cs336_systems.run.failure import printable
from scripts.bundle.make import METADATA, NAME, PLAN, REQUIRED, read_rows
from scripts.card.record import read_cards
from scripts.tools.archive import MB

LARGEST_ARCHIVE_MB = 20
"""Ten times a recorded machine's."""
MOST_ENTRIES = 2000
"""Ten times a recorded machine's."""
LARGEST_ENTRY_MB = 50
LARGEST_TOTAL_MB = 200
MOST_SECONDS = 300
"""CPU time of a check: thirty times that for a recorded machine."""
MOST_GB = 4
"""Address space of a check, in addition to what is used before."""
MOST_LETTERS = 500
"""Largest length of a sentence, which may quote anything."""
T = TypeVar("T")
LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The files of a bundle, read and validated; whether they are plausible is checked separately."""

    files: Mapping[str, bytes]
    folder: Path
    """Where they were written, as a machine's results."""
    graph: Sequence[Mapping[str, Any]]
    """The entities of the crate's description."""
    plan: Plan
    rows: Mapping[str, Sequence[Row]]
    """The rows of each experiment."""
    cards: Mapping[str, Sequence[Row]]
    """The rows of each run of the card."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle in its own temporary folder.

    Raises:
        ValueError: it is not a bundle, in one sentence.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            bundle = read(read_archive(path), Path(folder))
        except Exception as error:  # whatever an untrusted file can cause
            raise ValueError(f"{path}: {without_folder(error, folder)}") from error
        yield bundle


def without_folder(error: Exception, folder: str | Path) -> str:
    """Describe a fault of a bundle in one sentence, without its temporary folder."""
    if isinstance(error, MemoryError):
        return f"it takes more than {MOST_GB} GB of memory; allowed: less"
    kind = "" if type(error) is ValueError else f"not what `snakemake bundle` wrote ({type(error).__name__}): "
    return f"{kind}{error}"[:MOST_LETTERS].replace(f"{folder}/", "").replace("\n", " ")


def limit(path: str | Path) -> None:
    """Limit this process's time and memory, since a bundle's numbers may require any amount of either."""
    sentence = f"{path}: it takes more than {MOST_SECONDS} seconds of processor time; allowed: less"

    def end(*_: object) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # sent each second, also while Python exits without a handler
        sys.exit(printable(sentence))

    signal.signal(signal.SIGXCPU, end)
    seconds = int(time.process_time()) + MOST_SECONDS
    memory = psutil.Process().memory_info().vms + MOST_GB * 10**9
    # The system ends a process that does not react to the signal within a minute.
    for kind, limits in {resource.RLIMIT_CPU: (seconds, seconds + 60), resource.RLIMIT_AS: (memory, memory)}.items():
        with contextlib.suppress(OSError, ValueError):  # a lower limit holds, or macOS, which limits no address space
            resource.setrlimit(kind, limits)


def read_archive(path: Path) -> dict[str, bytes]:
    """Read the files of an archive. Nothing is written.

    Raises:
        ValueError: it has something other than plain files with a bundle's names, or exceeds the limits here.
    """
    if not path.is_file():
        raise ValueError("there is no such file; allowed: a zip archive")
    if (size := path.stat().st_size) > LARGEST_ARCHIVE_MB * MB:
        raise ValueError(f"it has {size / MB:.0f} MB; allowed: at most {LARGEST_ARCHIVE_MB}")
    with ZipFile(path) as packed:
        entries = packed.infolist()
        if len(entries) > MOST_ENTRIES:
            raise ValueError(f"it has {len(entries)} entries; allowed: at most {MOST_ENTRIES}")
        if (total := sum(entry.file_size for entry in entries)) > LARGEST_TOTAL_MB * MB:
            raise ValueError(f"it unpacks to {total / MB:.0f} MB; allowed: at most {LARGEST_TOTAL_MB}")
        if len({entry.filename.casefold() for entry in entries}) < len(entries):
            raise ValueError("two of its entries have the same name, ignoring case; allowed: different names")
        return {entry.filename: _content(packed, entry) for entry in entries}


def _content(packed: ZipFile, entry: ZipInfo) -> bytes:
    """An entry's bytes: no more are unpacked than its directory states, and their CRC must be right."""
    name = entry.orig_filename  # `filename` ends at a null byte
    if not NAME.fullmatch(name):
        raise ValueError(
            f"its entry {name!r} does not belong in a bundle; allowed: the files in docs/sharing-results.md"
        )
    plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
    if not plain or entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise ValueError(f"its entry {name!r} is a link, a folder or a device, or not deflated; allowed: plain files")
    with packed.open(entry) as file:
        return _limited(file.read(min(entry.file_size, LARGEST_ENTRY_MB * MB) + 1), name)


def _limited(content: bytes, name: str) -> bytes:
    if len(content) > LARGEST_ENTRY_MB * MB:
        raise ValueError(f"{name} unpacks to more than {LARGEST_ENTRY_MB} MB, the most that is allowed")
    return content


def read(files: Mapping[str, bytes], folder: Path) -> Bundle:
    """Write the files of a bundle into an empty folder, as a machine's results, and read them.

    Raises:
        ValueError: a file is missing, or does not have the content that its name requires.
    """
    if missing := [name for name in REQUIRED if name not in files]:
        raise ValueError(f"it has no {missing[0]}; allowed: what `snakemake bundle` wrote")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    plan = _parsed(PLAN, lambda: read_plan(folder / PLAN))
    if not LABEL.fullmatch(plan.machine):
        raise ValueError(f"{PLAN}: machine is {plan.machine[:80]!r}; allowed: small letters, digits and hyphens")
    csvs = sorted(folder.glob("raw/*/*.csv"))
    if not csvs or sorted(folder.glob("raw/*/*.csv.sha256")) != [digest_path(path) for path in csvs]:
        raise ValueError("it has no CSV file, or not one for each SHA-256; allowed: what `snakemake bundle` wrote")
    for trace in folder.glob("traces/*"):
        with gzip.open(trace) as file:
            _limited(file.read(LARGEST_ENTRY_MB * MB + 1), f"traces/{trace.name}")
        read_trace(trace)
    return Bundle(
        files=files,
        folder=folder,
        graph=_parsed(METADATA, lambda: json.loads(files[METADATA])["@graph"]),
        plan=plan,
        rows=read_rows(csvs, plan.machine),
        cards=read_cards(folder, plan.machine),
    )


def _parsed(name: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: not as `snakemake bundle` wrote it ({type(error).__name__}: {error})") from error
