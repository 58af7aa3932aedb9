"""Names for parts of a computation, shown by a profiler. They cost nothing unless a profiler is listening."""

import contextlib
from collections.abc import Iterator

import torch

_listening = False


def named_range(name: str) -> contextlib.AbstractContextManager[object]:
    """A part of a computation, for PyTorch's profiler and, as an NVTX range, for Nsight Systems."""
    # Checked first: then a compiled graph does not depend on a listener and is not recompiled for it.
    if torch.compiler.is_compiling() or not _listening:
        return contextlib.nullcontext()
    return _emit(name)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Emit named ranges inside this context."""
    global _listening
    _listening = True
    try:
        yield
    finally:
        _listening = False


@contextlib.contextmanager
def _emit(name: str) -> Iterator[None]:
    with torch.profiler.record_function(name):
        nvtx = torch.cuda.is_available()
        if nvtx:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if nvtx:
                torch.cuda.nvtx.range_pop()
