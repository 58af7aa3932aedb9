"""Digests of CSV files that a test changes or renames."""

import hashlib

from cs336_systems.record.rows import digest_path


def seal(path):
    """Write the digest of a doctored file, so that what is found is the fault itself."""
    digest_path(path).write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
