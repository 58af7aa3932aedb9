"""Limits of processor time and memory for what a stranger's numbers may make a computation cost."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from typing import Any

import psutil


class TooExpensive(Exception):
    """A computation took more than it may."""


@contextlib.contextmanager
def limited(seconds: int, gigabytes: int) -> Iterator[None]:
    """Limit what follows to so many more seconds of processor time and GB of address space; in the main thread only.

    Raises:
        TooExpensive: it takes more, in one sentence.
    """
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS)
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    spent = resource.getrusage(resource.RUSAGE_SELF)
    wanted = (
        int(spent.ru_utime + spent.ru_stime) + seconds + 1,
        psutil.Process().memory_info().vms + gigabytes * 10**9,
    )

    def restore() -> None:
        for kind, limits in before.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, limits)

    def stop(*_: Any) -> None:
        restore()  # or the signal comes again every second
        raise TooExpensive(f"it takes more than {seconds} seconds of processor time; allowed: less")

    handler = signal.signal(signal.SIGXCPU, stop)
    try:
        for (kind, (soft, hard)), value in zip(before.items(), wanted, strict=True):
            # macOS limits no address space.
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (value if soft == resource.RLIM_INFINITY else min(value, soft), hard))
        yield
    except MemoryError:
        raise TooExpensive(f"it takes more than {gigabytes} GB of memory; allowed: less") from None
    finally:
        restore()
        signal.signal(signal.SIGXCPU, handler)
