"""Command lines of dataclasses, whose mistakes are answered in one sentence."""

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import tyro

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
    nearest = get_close_matches("".join(wrong[:1]), [option.split()[0] for option in options], n=1, cutoff=0)
    return f"{error}; allowed: {next(option for option in options if option.split()[0] == nearest[0])}"
