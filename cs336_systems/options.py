"""Command lines of dataclasses, whose mistakes are answered in one sentence."""

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro


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
    """The sentence in tyro's box, whose paragraphs are the error and, below a line, the option that it explains."""
    inside = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    paragraphs = re.split(r"^[─-]+$", "\n".join(inside), flags=re.MULTILINE)
    error, *rest = paragraphs if box.startswith("╭") else paragraphs[1:]  # a plain box has its title above a line
    error = " ".join(error.partition("Got errors:")[0].split()).rstrip(".")
    if " Expected " in error:
        return error
    option = re.search(r"^--[a-z].*", "\n".join(rest), re.MULTILINE)
    return f"{error}; allowed: {option[0]}" if option else f"{error}; `{program} --help` lists what is allowed"
