"""Command lines of dataclasses, whose mistakes are answered in one sentence."""

import contextlib
import io
import re
import sys
import typing
from collections.abc import Sequence
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Annotated, Any

import tyro

from cs336_systems.experiments.base import field_docs

PARSING = r"Error parsing (\S+): "
SENTENCES = {
    rf"{PARSING}invalid literal for int.*: (.+)": r"\1 is \2; allowed: whole numbers",
    rf"{PARSING}could not convert string to float: (.+)": r"\1 is \2; allowed: numbers",
    rf"{PARSING}no type matching (?:{{None}}\|)?(\S+) could be instantiated from \[(.+)\]": r"\1 is \3; allowed: \2",
    rf"{PARSING}Could not find valid parse for arguments: \[(.+)\]": r"\1 is \2",
    r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.+)\)": r"\2 is \1; allowed: \3",
    r"Missing value for argument '(\S+)'\. Expected 1 values": r"\1 has no value; allowed: one value",
}
"""Tyro's errors, and the sentences that replace them."""


def options_of(kind: type) -> list[tuple[str, Any, Any]]:
    """The fields of a dataclass as options, for `make_dataclass`: the help of each is its docstring in one line."""
    hints, docs = typing.get_type_hints(kind, include_extras=True), field_docs(kind)
    return [
        (
            option.name,
            Annotated[hints[option.name], tyro.conf.arg(help=docs[option.name])],
            field(default=option.default),
        )
        for option in fields(kind)
    ]


def parse(command: type, program: str, arguments: Sequence[str], description: str | None, config: Any = ()) -> Any:
    """Parse a command line; exits with status 2 and one sentence if an option or a value is not allowed."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(command, prog=program, args=list(arguments), description=description, config=config)
    except SystemExit as end:
        if end.code:
            print(f"{program}: {one_sentence(box.getvalue(), program)}", file=sys.stderr)
        raise


def one_sentence(box: str, program: str) -> str:
    """The first paragraph of tyro's box, below its title, and the option that another one is about."""
    below = "\n".join(line.strip("│ ") for line in box.splitlines()[1:])
    error, *others = re.split(r"\n[─-]*\n", re.sub(r"^-+\n", "", below))
    error = " ".join(error.split()).rstrip(".")
    for words, sentence in SENTENCES.items():
        error = re.sub(f"^{words}$", sentence, error)
    if "; allowed: " in error:
        return error
    options, wrong = re.findall(r"^--[a-z].*", "\n".join(others), re.MULTILINE), re.findall(r"--[\w-]+", error)
    if not options:
        return f"{error}; `{program} --help` lists what is allowed"
    by_name = {option.split()[0]: option for option in options}
    (nearest,) = get_close_matches("".join(wrong[:1]), by_name, n=1, cutoff=0)
    return f"{error}; allowed: {by_name[nearest]}"
