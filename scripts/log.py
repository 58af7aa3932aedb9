"""The log file of a script that Snakemake runs, and lines that a terminal shows as they are."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def log_to(path: str) -> Iterator[None]:
    """Send what is printed, and the traceback of an error, to the log file, which Snakemake shows when a job fails."""
    with (
        Path(path).open("w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            yield
        except BaseException:
            traceback.print_exc()
            raise


def printable(line: str) -> str:
    """A line that may quote anybody's text, without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
