"""A file that is no trace of a training step is refused in a sentence that names it."""

import gzip
import json
import re

import pytest

from cs336_systems.measure.trace import attribute, read_events
from cs336_systems.measure.trace_file import read_trace
from scripts.figures.kernel_timeline import draw, lanes_of
from tests.traces import FOLDER, MODELS

EAGER = (FOLDER / "eager.json.gz").read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_trace_is_read_as_it_is(name):
    assert read_trace(FOLDER / f"{name}.json.gz") == attribute(read_events(FOLDER / f"{name}.json.gz"))


def zipped(content: bytes) -> bytes:
    """A file without the time, so that every process names the tests alike."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a complete trace file"),
        (EAGER[:-1000], "not a complete trace file (its end is missing)"),
        (EAGER[:1000] + bytes(100) + EAGER[1100:], "not a complete trace file"),
        (b"garbage", "not a complete trace file (Not a gzipped file"),
        (zipped(b"[" * 100_000), "not a complete trace file"),
        (zipped(b"{"), "not a complete trace file (its end is missing)"),
        (zipped(b"\xff\xfe"), "not a complete trace file"),
        (zipped(b"[1, 2]"), "not a trace of PyTorch's profiler (TypeError: "),
        (zipped(b'{"traceEvents": []}'), "it has no events, and no note"),
        (zipped(b'{"otherData": {"note": ""}, "traceEvents": []}'), "it has no events, and no note"),
        (zipped(b'{"traceEvents": [7]}'), "not a trace of PyTorch's profiler (AttributeError: "),
        (zipped(b'{"traceEvents": [{"cat": "cpu_op"}]}'), "not a trace of PyTorch's profiler (KeyError: 'name')"),
        (zipped(b'{"traceEvents": [{"ph": "M"}]}'), "it has no range of a training step; allowed: one of forw"),
        (None, "not a complete trace file ([Errno 2] No such file"),
    ],
)
def test_anything_else_is_refused_with_its_name(tmp_path, content, message):
    path = tmp_path / "step.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")) as error:
        draw(str(path))
    assert "\n" not in str(error.value)


def test_each_field_that_attribution_reads_is_asked_for(tmp_path):
    """Without it, or as text, an event is either refused or drawn without a crash."""
    one_of_each = {event.get("cat"): event for event in read_events(FOLDER / "eager.json.gz")}
    whole = [{"cat": "user_annotation", "name": "forward", "tid": 1, "ts": 0}, *one_of_each.values()]
    refused = 0
    for number, event in enumerate(whole[1:], start=1):
        for field in [*event, *(f"args.{name}" for name in event.get("args", ()))]:
            for value in (None, "a", [], {}):
                copy = json.loads(json.dumps(event))
                owner, name = (copy["args"], field[5:]) if field.startswith("args.") else (copy, field)
                owner.pop(name) if value is None else owner.update({name: value})
                events = [*whole[:number], copy, *whole[number + 1 :]]
                (tmp_path / "step.json").write_text(json.dumps({"traceEvents": events}))
                try:
                    trace = read_trace(tmp_path / "step.json")
                except ValueError:
                    refused += 1
                else:
                    lanes_of(trace)
    assert refused > 20
