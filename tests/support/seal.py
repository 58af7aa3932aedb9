"""CSV files of jobs that a test changes or renames, with the digest that belongs to them."""

import hashlib
import shutil

from cs336_systems.record.rows import digest_path


def seal(path):
    """Write the digest of a doctored file, so that what is found is the fault itself."""
    digest_path(path).write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


def copy_sealed(path, copy):
    """Copy a job's CSV file to another name, with its digest."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, copy)
    seal(copy)
