"""Files that a test writes or changes."""

import hashlib

from cs336_systems.record.rows import digest_path


def write_files(folder, files):
    """Write texts into a folder, by their paths in it."""
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def seal(path):
    """Write the digest of a doctored CSV file, so that what is found is the fault itself."""
    digest_path(path).write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
