"""A folder to verify: a copy of it, in which its code runs, and its commit."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cs336_systems.run.failure import printable

NOT_COPIED = (".*", "__pycache__", "node_modules", "venv", "wandb")
NOT_COPIED_AT_THE_TOP = ("results", "data")
LARGEST_FILE_MB, LARGEST_MB = 10, 100


@contextlib.contextmanager
def read_only_copy(folder: Path) -> Iterator[Path]:
    """A copy of a folder in which its code runs, without links, pipes, hidden files, and files as large as a profile.

    Raises:
        ValueError: the folder is too large or cannot be read, in one sentence.
    """

    def left_out(place: str, names: list[str]) -> set[str]:
        paths = {name: Path(place) / name for name in names}
        others = {name for name, path in paths.items() if path.is_symlink() or not (path.is_file() or path.is_dir())}
        large = {name for name, path in paths.items() if path.lstat().st_size > LARGEST_FILE_MB * 1e6}
        at_the_top = NOT_COPIED_AT_THE_TOP if Path(place) == folder else ()
        return others | large | shutil.ignore_patterns(*NOT_COPIED, *at_the_top)(place, names)

    size = 0
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - left_out(place, folders)
        size += sum((Path(place) / name).lstat().st_size for name in set(files) - left_out(place, files))
    if size > LARGEST_MB * 1e6:
        raise ValueError(f"{name_of(folder)} has {size / 1e6:.0f} MB; allowed: at most {LARGEST_MB} MB, without links")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary).resolve() / folder.name
        try:
            shutil.copytree(folder, copy, ignore=left_out)
        except shutil.Error as error:
            path, _, reason = error.args[0][0]
            raise ValueError(f"{Path(path).relative_to(folder)} cannot be copied: {reason}") from None
        for place, _, files in os.walk(copy, topdown=False):
            for name in files:
                (Path(place) / name).chmod(0o444)
            Path(place).chmod(0o555)
        try:
            yield copy
        finally:
            for place, _, _ in os.walk(copy):
                Path(place).chmod(0o755)


def name_of(folder: Path) -> str:
    """A folder's name as text: bytes that are not UTF-8, as in an archive from another system, are escaped."""
    return printable(os.fsencode(folder.name).decode("utf-8", "backslashreplace"))


def commit_of(folder: Path) -> str:
    """The checked-out commit of a folder; empty if it cannot be read. No git program runs in it."""
    git, texts = folder / ".git", [""]
    with contextlib.suppress(OSError, UnicodeError):
        texts = [(git / "HEAD").read_text(encoding="utf-8")]
        files = git / texts[0].strip().removeprefix("ref: "), git / "packed-refs"
        texts += [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    ref = re.escape(texts[0].strip().removeprefix("ref: "))
    commit = re.search(rf"^([0-9a-f]{{40}})( {ref})?$", "\n".join(texts), re.MULTILINE)
    return commit[1][:10] if commit else ""
