"""Revisions of measuring code: a row is current if the revisions that made it are the present ones. No torch here.

Every experiment, contender and shared instrument has a revision in revisions.yaml, which is raised when a code change
may change a measurement (`python -m scripts.revisions`). A user's own code has a digest instead.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cs336_systems.experiments.contender import names_of
from cs336_systems.implementations import PARAMETER, WHO, own_implementations
from cs336_systems.record.source import own_digest
from cs336_systems.yaml_file import read_mapping

LOCK = Path(__file__).parents[1] / "revisions.yaml"
FIRST = 1
"""The revision of units that are not in the lock yet."""
OWN_MODEL = "cs336_systems.model:TransformerLM"
CHOSEN: dict[tuple[str, str], tuple[str, object]] = {
    ("model", "flash_kernels"): ("attention", "flash"),
    **{(unit, "fp8"): ("has_fp8", True) for unit in ("card", "kernel_trace", "leaderboard", "training_ladder")},
}
"""Instruments that another unit runs only in cells with this value of a parameter or property."""


class Unit(NamedTuple):
    """An experiment, a contender (as experiment/name) or a shared instrument."""

    revision: int
    uses: tuple[str, ...]
    """The instruments that it uses directly."""
    digest: str
    """The digest of the code for which the revision was declared or accepted."""


@cache
def read_lock(file: Path = LOCK) -> dict[str, Unit]:
    """All units by name."""
    return {name: Unit(of["revision"], tuple(of["uses"]), of["digest"]) for name, of in read_mapping(file).items()}


def revisions_of(cell: Any, contenders: Iterable[str] = ()) -> dict[str, str]:
    """The revisions of an experiment, of some of its contenders, and of the instruments that they use.

    Args:
        cell: a cell.
        contenders: their names in its rows; a user's code has a digest, by package.module:name.
    """
    own = {implementation.name: implementation.path for implementation in own_implementations(cell)}
    names = [cell.name, *(own.get(each) or f"{cell.name}/{each}" for each in contenders)]
    if (model := getattr(cell, "model", OWN_MODEL)) != OWN_MODEL:
        names.append(model)
    return {name: present(name) for name in _with_uses(names, cell)}


def _with_uses(names: Iterable[str], cell: Any) -> Iterator[str]:
    """Names, followed by the names of all instruments that they use, each once."""
    pending, seen = list(names), set[str]()
    while pending:
        name = pending.pop(0)
        if name in seen:
            continue
        seen.add(name)
        yield name
        for used in read_lock()[name].uses if name in read_lock() else ():
            parameter, value = CHOSEN.get((name, used), ("", ""))
            if not parameter or getattr(cell, parameter, "") == value:
                pending.append(used)


@cache
def present(name: str) -> str:
    """The present revision of a unit, or the digest of a user's own code.

    Raises:
        ValueError: that code cannot be found.
    """
    if ":" in name:
        return own_digest(name)
    return str(read_lock()[name].revision if name in read_lock() else FIRST)


def contenders_of(cell: Any) -> list[str]:
    """The contenders of a cell, by their names in rows."""
    own = [implementation.name for implementation in own_implementations(cell)]
    if not set(WHO).intersection(cell.details):
        return own or [getattr(cell, PARAMETER)] if hasattr(cell, PARAMETER) else []
    return [*names_of(cell.contenders), *own]


def as_text(revisions: dict[str, str]) -> str:
    """Revisions in the format of rows."""
    return " ".join(f"{name}={revision}" for name, revision in revisions.items())


@cache
def same_code(a: str, b: str) -> bool:
    """Whether rows with these revisions were measured with the same code.

    A unit that only one of them names was declared later; its first revision is the code from before.
    """
    if not (a and b):
        return a == b
    named = [dict(each.rpartition("=")[::2] for each in text.split()) for text in (a, b)]
    return all(len({units.get(name, str(FIRST)) for units in named}) == 1 for name in {**named[0], **named[1]})


@cache
def is_current(text: str) -> bool | None:
    """Whether a row's revisions are the present ones; None if its code is not on this machine."""
    carried = [each.rpartition("=") for each in text.split()]
    try:
        return all(present(name) == revision for name, _, revision in carried)
    except ValueError:
        return None
