"""Parsed files for the digests of the code, kept between runs: to parse it all takes a second."""

import atexit
import contextlib
import pickle
from functools import cache
from pathlib import Path

from cs336_systems.measure import source

Key = tuple[str, Path, int]
"""A module, its file, and when that was written, ns."""


def keep_parsed_sources(kept: Path) -> None:
    """From now on, parse only what is not in a file of an earlier run, and write there at the end what was used."""
    version = Path(source.__file__).stat().st_mtime_ns
    known: dict[Key, tuple[str, list[str]]] = {}
    # Whatever is wrong with it, it can be done without.
    with contextlib.suppress(Exception):
        written, content = pickle.loads(kept.read_bytes())
        known = content if written == version else {}
    used: dict[Key, tuple[str, list[str]]] = {}
    parse = source._parse

    @cache  # Each run asks for most files a hundred times, and to resolve a path takes longer than all else here.
    def parse_once(module: str, path: Path, mtime_ns: int) -> tuple[str, list[str]]:
        key = (module, path.resolve(), mtime_ns)
        used[key] = known.get(key) or parse(module, path, mtime_ns)
        return used[key]

    def keep() -> None:
        if used.keys() - known.keys():
            kept.parent.mkdir(exist_ok=True)
            complete = kept.with_suffix(".partial")
            complete.write_bytes(pickle.dumps((version, used)))
            complete.replace(kept)

    source._parse = parse_once
    atexit.register(keep)
