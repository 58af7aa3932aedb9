"""Validation of trace files, which may be damaged or unrelated. No torch here."""

import json
import math
import zlib
from pathlib import Path

from cs336_systems.measure.trace import WHOLE, Trace, attribute, read_file
from cs336_systems.record.measurement import STAGES


def read_trace(path: Path) -> Trace | str:
    """Read a trace of training steps, or the note that says why none was recorded.

    A file that cannot be read or is not a trace raises a ValueError, one sentence that names the file.
    """
    try:
        content = read_file(path)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        reason = "its end is missing" if isinstance(error, EOFError | json.JSONDecodeError) else error
        raise ValueError(f"{path}: not a complete trace file ({reason})") from None
    try:
        events, note = content["traceEvents"], content.get("otherData", {}).get("note", "")
        trace = attribute(events)
        times = [end for stage in trace.stages for end in (stage.start, stage.end)]
        times += [end for kernel in trace.kernels for end in (kernel.start, kernel.end)]
        texts = [text for kernel in trace.kernels for text in (kernel.name, kernel.range, kernel.operator)]
        drawable = all(map(math.isfinite, times)) and all(isinstance(text, str) for text in texts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trace of PyTorch's profiler ({type(error).__name__}: {error})") from None
    if not events:
        if not isinstance(note, str) or not note:
            raise ValueError(f"{path}: it has no events, and no note that says why in 'otherData'")
        return note
    if not trace.stages:
        raise ValueError(f"{path}: it has no range of a training step; allowed: one of {', '.join((*STAGES, WHOLE))}")
    if not drawable:
        raise ValueError(f"{path}: not a trace of PyTorch's profiler (a name is no text, or a time no number)")
    return trace
