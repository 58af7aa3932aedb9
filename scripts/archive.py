"""Zip archives: packed so that the same files give the same bytes, and read so that a stranger's does no harm."""

import re
import stat
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

DATE = (1980, 2, 1, 0, 0, 0)
"""Of files whose own does not matter; in no time zone before 1980, where zip begins."""
REGULAR, PROGRAM = 0o100644, 0o100755
UNIX = 3
ENCRYPTED = 0x1
MB = 10**6
LARGEST_ARCHIVE_MB = 20
"""Ten times a recorded machine's."""
MOST_ENTRIES = 2000
"""Ten times a recorded machine's."""
LARGEST_ENTRY_MB = 50
LARGEST_TOTAL_MB = 200
LARGEST_RATIO = 100
"""The most bytes that one packed byte may stand for: four times what rows of measurements reach."""
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows reads as devices, whatever their suffix."""


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


def read_archive(archive: Path, fault_of: Callable[[str], str]) -> dict[str, bytes]:
    """Read the files of an archive that anybody may have made. Nothing is written.

    Args:
        archive: the file.
        fault_of: tells what is wrong with a name; empty if it may be in the archive.

    Raises:
        ValueError: it is no whole archive of plain files with such names, or larger than the limits here, in one
            sentence.
    """
    try:
        if not archive.is_file():
            raise ValueError("there is no such file; allowed: a zip archive")
        if (size := archive.stat().st_size) > LARGEST_ARCHIVE_MB * MB:
            raise ValueError(f"it has {size / MB:.0f} MB; allowed: at most {LARGEST_ARCHIVE_MB}")
        with ZipFile(archive) as packed:
            entries = packed.infolist()
            if fault := _fault(entries, fault_of):
                raise ValueError(fault)
            return {entry.filename: _content(packed, entry) for entry in entries}
    except OSError as error:
        raise ValueError(f"{archive}: {error.strerror or error}") from None
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error, struct.error) as error:
        raise ValueError(f"{archive}: not a whole zip archive ({error})") from None
    except ValueError as error:
        raise ValueError(f"{archive}: {error}") from None


def _fault(entries: Collection[ZipInfo], fault_of: Callable[[str], str]) -> str:
    """The reason why an archive's directory is not allowed, in one sentence; empty if it is."""
    if len(entries) > MOST_ENTRIES:
        return f"it has {len(entries)} entries; allowed: at most {MOST_ENTRIES}"
    seen: dict[str, str] = {}
    for entry in entries:
        # Up to a null byte, which ends the name for `ZipFile`.
        name = entry.orig_filename
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if fault := fault_of(name) or ("is a device's name" if any(map(RESERVED.fullmatch, name.split("/"))) else ""):
            return f"its entry {name!r} {fault}"
        if (other := seen.get(name.casefold())) is not None:
            return f"its entry {name!r} is on some disks the same file as {other!r}; allowed: different names"
        seen[name.casefold()] = name
        if kind not in (0, stat.S_IFREG):
            return f"its entry {name!r} is a link, a folder or a device; allowed: plain files"
        if entry.flag_bits & ENCRYPTED:
            return f"its entry {name!r} is encrypted; allowed: what anybody can read"
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            return f"its entry {name!r} is packed by method {entry.compress_type}; allowed: stored or deflated"
        if entry.file_size > LARGEST_ENTRY_MB * MB:
            return f"its entry {name!r} has {entry.file_size / MB:.0f} MB; allowed: at most {LARGEST_ENTRY_MB}"
        if entry.file_size > LARGEST_RATIO * max(entry.compress_size, 1):
            return f"its entry {name!r} unpacks to over {LARGEST_RATIO} times its size; allowed: up to that"
    if (total := sum(entry.file_size for entry in entries)) > LARGEST_TOTAL_MB * MB:
        return f"it unpacks to {total / MB:.0f} MB; allowed: at most {LARGEST_TOTAL_MB}"
    return ""


def _content(packed: ZipFile, entry: ZipInfo) -> bytes:
    """An entry's bytes: no more of them are unpacked than its directory says, and their CRC must be its."""
    with packed.open(entry) as file:
        return file.read(entry.file_size + 1)
