"""Reproducible zip archives: the same files give the same bytes; executables keep their modes."""

from collections.abc import Collection, Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

DATE = (1980, 2, 1, 0, 0, 0)
"""Date of files whose own date does not matter; in no time zone before 1980, the first year of zip."""
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
        programs: names of the executables.
    """
    with ZipFile(archive, "w") as packed:
        for name, content in sorted(files.items()):
            entry = ZipInfo(name, date)
            entry.create_system = UNIX
            entry.external_attr = (PROGRAM if name in programs else REGULAR) << 16
            packed.writestr(entry, content, compress_type=ZIP_DEFLATED)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive with its files' modes, like `unzip` and unlike `ZipFile.extractall`."""
    with ZipFile(archive) as packed:
        for entry in packed.infolist():
            Path(packed.extract(entry, folder)).chmod(entry.external_attr >> 16 & 0o777)
