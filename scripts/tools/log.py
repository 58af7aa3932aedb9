"""The log file of a script that Snakemake runs, and shortened lists."""

import contextlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path


class Refused(ValueError):
    """A file of the user's that cannot be used, in one sentence: shown without a traceback."""


@contextlib.contextmanager
def log_to(path: str) -> Iterator[None]:
    """Redirect output, and the traceback of an error, to the log file, which Snakemake shows when a job fails."""
    with (
        Path(path).open("w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            yield
        except Refused as refusal:
            print(refusal)
            sys.exit(1)
        except KeyboardInterrupt:
            print("ended by Ctrl-C")
            sys.exit(1)
        except BaseException:
            traceback.print_exc()
            raise


def shortened(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first few names, and the number of the others."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return separator.join([*names[:most], *more])
