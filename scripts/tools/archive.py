"""Zip archives of which the same files give the same bytes, with the modes of programs."""

from collections.abc import Collection, Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

DATE = (1980, 2, 1, 0, 0, 0)
"""Of files whose own does not matter; in no time zone before 1980, where zip begins."""
REGULAR, PROGRAM = 0o100644, 0o100755
UNIX = 3
MB = 10**6


def pack(
    archive: Path,
    files: Mapping[str, bytes],
    *,
    date: tuple[int, int, int, int, int, int] = DATE,
    programs: Collection[str] = (),
) -> None:
    """Write files into a zip archive, sorted: the same files give the same bytes.

    Args:
        archive: where to write it.
        files: the content of each by its name.
        date: modification time of all of them.
        programs: names of those that may be run.
    """
    with ZipFile(archive, "w") as packed:
        for name, content in sorted(files.items()):
            entry = ZipInfo(name, date)
            entry.create_system = UNIX
            entry.external_attr = (PROGRAM if name in programs else REGULAR) << 16
            packed.writestr(entry, content, compress_type=ZIP_DEFLATED)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive with its files' modes, as `unzip` does and `ZipFile.extractall` does not."""
    with ZipFile(archive) as packed:
        for entry in packed.infolist():
            Path(packed.extract(entry, folder)).chmod(entry.external_attr >> 16 & 0o777)
