"""A folder to verify: a copy of it, in which its code runs, and its commit."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOT_COPIED = (".*", "__pycache__", "node_modules", "venv", "wandb")
NOT_COPIED_AT_THE_TOP = ("results", "data")
LARGEST_FILE_MB, LARGEST_MB = 10, 100


@contextmanager
def read_only_copy(folder: Path) -> Iterator[Path]:
    """A copy of a folder in which its code runs, without links, hidden files, and files as large as a profile.

    Raises:
        ValueError: the folder is too large, in one sentence.
    """

    def left_out(place: str, names: list[str]) -> set[str]:
        paths = {name: Path(place) / name for name in names}
        links = {name for name, path in paths.items() if path.is_symlink()}
        large = {name for name, path in paths.items() if path.lstat().st_size > LARGEST_FILE_MB * 1e6}
        at_the_top = NOT_COPIED_AT_THE_TOP if Path(place) == folder else ()
        return links | large | shutil.ignore_patterns(*NOT_COPIED, *at_the_top)(place, names)

    size = 0
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - left_out(place, folders)
        size += sum((Path(place) / name).lstat().st_size for name in set(files) - left_out(place, files))
    if size > LARGEST_MB * 1e6:
        raise ValueError(f"{folder.name} has {size / 1e6:.0f} MB; allowed: at most {LARGEST_MB} MB, without links")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary).resolve() / folder.name
        shutil.copytree(folder, copy, ignore=left_out)
        for place, _, files in os.walk(copy, topdown=False):
            for name in files:
                (Path(place) / name).chmod(0o444)
            Path(place).chmod(0o555)
        try:
            yield copy
        finally:
            for place, _, _ in os.walk(copy):
                Path(place).chmod(0o755)


def commit_of(folder: Path) -> str:
    """The checked-out commit of a folder; empty if it cannot be read. No git program runs in it."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            ref = head.removeprefix("ref: ")
            loose = git / ref
            packed = git / "packed-refs"
            lines = [loose.read_text(encoding="utf-8")] if loose.is_file() else packed.read_text("utf-8").splitlines()
            head = next((line for line in lines if ref in line or loose.is_file()), "").split()[0]
    except (OSError, UnicodeError, IndexError):
        return ""
    return head[:10] if re.fullmatch(r"[0-9a-f]{40}", head) else ""
