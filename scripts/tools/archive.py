"""Zip archives: reproducible ones, and unpacked ones whose executables stay executable."""

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

DATE = (1980, 2, 1, 0, 0, 0)
"""Date of files whose own date does not matter; in no time zone before 1980, the first year of zip."""
REGULAR = 0o100644
UNIX = 3
MB = 10**6


def pack(archive: Path, files: Mapping[str, bytes], *, date: tuple[int, int, int, int, int, int] = DATE) -> None:
    """Write files, by name, into a zip archive, sorted and of one date: the same files give the same bytes."""
    with ZipFile(archive, "w") as packed:
        for name, content in sorted(files.items()):
            entry = ZipInfo(name, date)
            entry.create_system = UNIX
            entry.external_attr = REGULAR << 16
            packed.writestr(entry, content, compress_type=ZIP_DEFLATED)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive with the modes that it has, unlike `ZipFile.extractall`."""
    with ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = Path(packed.extract(entry, folder))
            if mode := entry.external_attr >> 16 & 0o777:
                path.chmod(mode)
