"""Digests that code has had under other names, by which older rows name it (`scripts.same_code` finds them)."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from cs336_systems.record.validation import Row


def read_later(files: Iterable[Path]) -> dict[str, str]:
    """The digest after a rename, by that before it."""
    later = {}
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines:
            later.update({row["old_digest"]: row["new_digest"] for row in csv.DictReader(lines)})
    return later


def latest(digest: str, later: Mapping[str, str]) -> str:
    """The digest of the same code after all renames."""
    seen = set()
    while digest in later and digest not in seen:
        seen.add(digest)
        digest = later[digest]
    return digest


def with_latest_digest(row: Row, later: Mapping[str, str]) -> Row:
    """A row with the digest that its code has after all renames, which change no measurement."""
    digest = vars(row)["source_digest"]
    return row if digest not in later else row.model_copy(update={"source_digest": latest(digest, later)})
