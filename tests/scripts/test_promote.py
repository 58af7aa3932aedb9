"""Promotion to the recorded results: whole measurements and traces of this machine, never what a link names."""

import gzip
import os
import shutil

import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row, write_job
from scripts.bundle.promote import promote
from tests.samples import ROOT, provenance

TRACE = ROOT / "recorded/nvidia-h200/traces/training_step.json.gz"
NOTE = b'{"otherData": {"note": "out of memory"}, "traceEvents": []}'


@pytest.fixture
def results(tmp_path):
    row = make_row(Accumulation(), summarize("sum", "", [10.0]), provenance())
    write_job(tmp_path / "results/cpu/raw/accumulation/all.csv", Accumulation, [row])
    (tmp_path / "results/cpu/traces").mkdir()
    shutil.copy2(TRACE, tmp_path / "results/cpu/traces")
    return tmp_path / "results/cpu"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_csvs_with_their_digests_and_traces_are_copied_and_nothing_else(results, tmp_path):
    wanted = files(results)
    for name in ("traces/notes.txt", "traces/more/x.json.gz", "raw/accumulation/.all.csv.partial", "raw/mine.csv"):
        (results / name).parent.mkdir(exist_ok=True)
        (results / name).touch()
    recorded = tmp_path / "recorded/cpu"
    assert sorted(promote(results, recorded)) == [recorded / name for name in wanted]
    assert files(recorded) == wanted
    for name in wanted:
        assert (recorded / name).read_bytes() == (results / name).read_bytes()


def test_a_trace_may_say_why_there_is_none(results, tmp_path):
    (results / "traces" / TRACE.name).write_bytes(gzip.compress(NOTE))
    assert promote(results, tmp_path / "recorded/cpu")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"traces/{TRACE.name}", TRACE.read_bytes()[:1000]),
        (f"traces/{TRACE.name}", gzip.compress(b'{"traceEvents": []}', mtime=0)),
        ("raw/accumulation/all.csv", b"written by hand"),
    ],
    ids=["cut off", "empty", "by hand"],
)
def test_what_no_measurement_wrote_is_named_and_nothing_is_copied(results, tmp_path, name, content):
    path = results / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: "):
        promote(results, tmp_path / "recorded/cpu")
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("raw/accumulation/all.csv.sha256", lambda path: None),
        ("raw/accumulation/all.csv.sha256", os.mkfifo),
        ("traces/pipe.json.gz", os.mkfifo),
        ("traces/folder.json.gz", os.mkdir),
    ],
)
def test_what_is_no_file_is_named_and_nothing_is_copied(results, tmp_path, name, make):
    (results / name).unlink(missing_ok=True)
    make(results / name)
    with pytest.raises(ValueError, match=f"{name} is missing, or is not a file; allowed: a file$"):
        promote(results, tmp_path / "recorded/cpu")
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    "name", ["raw/accumulation/all.csv", "raw/accumulation", "traces/training_step.json.gz", "traces"]
)
@pytest.mark.parametrize("side", ["results", "recorded"])
def test_links_are_refused(results, tmp_path, name, side):
    recorded = tmp_path / "recorded/cpu"
    promote(results, recorded)
    linked = (results if side == "results" else recorded) / name
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"/{side}/cpu/{name} is a symbolic link; allowed: a file or a folder$"):
        promote(results, recorded)


def test_the_folder_of_all_results_may_be_a_link(results, tmp_path):
    (tmp_path / "link").symlink_to("results")
    assert promote(tmp_path / "link/cpu", tmp_path / "recorded/cpu")


def test_nothing_is_not_promoted(results, tmp_path):
    shutil.rmtree(results / "raw")
    with pytest.raises(ValueError, match="cpu/raw has no CSV file of an experiment; allowed: at least one"):
        promote(results, tmp_path / "recorded/cpu")
    assert not (tmp_path / "recorded").exists()
