"""The units of memory for readers."""

from cs336_systems.accounting.units import MIB

GIB = 1024 * MIB
GB = 1e9
BYTE = 1 / MIB
"""A byte in MiB: sizes that differ by less are equal."""
LARGE = 4 * GIB
"""From this size on, GiB are easier to read."""


def memory_unit(largest: float) -> tuple[str, int]:
    """The unit of numbers up to the given bytes: its name and its bytes."""
    return ("GiB", GIB) if largest > LARGE else ("MiB", MIB)
