"""The CSV record: the round trip, atomic writing, older files, and what is refused on writing and on reading."""

import csv
import dataclasses
import errno
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import numpy as np
import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.record.measurement import ORDERED_SAMPLES, Measurement, format_samples, parse_samples, summarize
from cs336_systems.record.rows import BYTES_PER_CELL, digest_path, make_row, read_jobs, reserved, write_job
from tests.samples import ROOT, mistakes, provenance
from tests.support.files import seal

CELL = EndToEnd(steps=3)
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
TIMES = [1.25, 2.5, 3.0]


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_statistics_agree_with_numpy(count):
    samples = np.random.default_rng(count).exponential(size=count).tolist()
    summary = summarize("step", "ms", samples)
    assert summary.n == count
    assert summary.mean == pytest.approx(np.mean(samples))
    assert summary.median == pytest.approx(np.median(samples))
    assert (summary.p20, summary.p80) == pytest.approx(tuple(np.percentile(samples, [20, 80])))
    assert summary.std is None if count == 1 else summary.std == pytest.approx(np.std(samples, ddof=1))


@pytest.mark.parametrize("count", [2, ORDERED_SAMPLES, 4000])
def test_samples_are_kept_compactly(count):
    # The clock of CUDA events ticks: many samples of a short kernel are equal.
    samples = (np.random.default_rng(count).integers(900, 1000, size=count) / 1e5).tolist()
    text = summarize("step", "ms", samples).samples
    kept = parse_samples(text)
    assert kept == pytest.approx(samples if count <= ORDERED_SAMPLES else sorted(samples), rel=1e-4)
    assert len(text) < 3000


def test_equal_neighbours_are_counted_and_order_stays():
    assert format_samples([1.5, 2.0, 2.0, 1.25]) == "1.5 2*2 1.25"
    assert format_samples([123456.0, 0.0000123456]) == "1.2346e+05 1.2346e-05"


ROWS = [
    make_row(EndToEnd(size="nano", steps=3), summarize("step", "ms", TIMES), provenance()),
    make_row(
        EndToEnd(compiled=True), Measurement(metric="cell", status="oom", message="a, b\n\"c\" ü 中 'd'"), provenance()
    ),
    make_row(
        EndToEnd(size="mine:d_model=8,d_ff=8,num_layers=1,num_heads=2"),
        Measurement(metric="logits_dtype", unit="dtype", n=1, value="bfloat16"),
        provenance(git_dirty=None),
    ),
]


def test_rows_survive_the_round_trip(tmp_path):
    write_job(tmp_path / "a.csv", EndToEnd, ROWS)
    assert read_jobs(EndToEnd, [tmp_path / "a.csv"]) == ROWS


@pytest.mark.parametrize("text", ["a\rb", "\r\n", "a\nb", 'a "b"', "a, b", "ü 中 שלום", " a "])
def test_a_text_survives_the_round_trip_but_for_carriage_returns(tmp_path, text):
    measurement = Measurement(metric="cell", status="failed", message=text)
    write_job(tmp_path / "a.csv", EndToEnd, [make_row(EndToEnd(), measurement, provenance())])
    (row,) = read_jobs(EndToEnd, [tmp_path / "a.csv"])
    assert row.message == text.replace("\r", " ")


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.csv"
    write_job(path, EndToEnd, ROWS[:1])
    other = make_row(CELL, summarize("step", "s", TIMES), provenance())
    with pytest.raises(ValueError, match="unit is 's'; allowed for step: 'ms'"):
        write_job(path, EndToEnd, [ROWS[0], other])
    assert read_jobs(EndToEnd, [path]) == ROWS[:1]
    assert {file.name for file in tmp_path.iterdir()} == {"a.csv", "a.csv.sha256"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_rights_that_the_umask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_job(tmp_path / "a.csv", EndToEnd, ROWS[:1])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


def test_what_a_killed_job_left_is_written_over(tmp_path):
    path = tmp_path / "a.csv"
    for name in (".a.csv.partial", ".a.csv.sha256.partial"):
        (tmp_path / name).write_text("x" * 10_000)
    with reserved(path, cells=1):
        assert {file.name for file in tmp_path.iterdir()} == {".a.csv.partial", ".a.csv.sha256.partial"}
        write_job(path, EndToEnd, ROWS)
    assert read_jobs(EndToEnd, [path]) == ROWS
    assert {file.name for file in tmp_path.iterdir()} == {"a.csv", "a.csv.sha256"}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("folder", "which is a folder; allowed: a file"),
        ("pipe", "which is a device or a pipe; allowed: a file"),
        ("file/a.csv", "where no file can be written (File exists"),
        ("a" * 300, "where no file can be written (File name too long"),
        ("/proc/nowhere/a.csv", "where no file can be written (No such file or directory"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_anything_is_measured(tmp_path, output, message):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=re.escape(message)) as error, reserved(tmp_path / output, cells=1):
        raise AssertionError
    assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.rglob("*")} == {"folder", "pipe", "file"}


def test_a_full_disk_is_found_before_anything_is_measured(tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with reserved(tmp_path / "a.csv", cells=1):
        held = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
        assert held > BYTES_PER_CELL  # so that a disk which fills up meanwhile loses nothing
        write_job(tmp_path / "a.csv", EndToEnd, ROWS)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="No space left on device"), reserved(tmp_path / "b.csv", cells=1):
        raise AssertionError
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "a.csv.sha256"}


def test_a_byte_order_mark_changes_nothing(tmp_path):
    path = tmp_path / "a.csv"
    write_job(path, EndToEnd, ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    seal(path)
    assert read_jobs(EndToEnd, [path]) == ROWS


def rewrite(path, values):
    """Change columns of a file's rows, or leave out those that are None."""
    with path.open(newline="") as file:
        records = [dict(record, **values) for record in csv.DictReader(file)]
    records = [{name: value for name, value in record.items() if value is not None} for record in records]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    seal(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [*mistakes("rows"), ({"utc": TOMORROW}, "line 2: utc is '.*', which is in the future")],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path, values, message):
    path = tmp_path / "a.csv"
    write_job(path, EndToEnd, ROWS[:1])
    rewrite(path, values)
    with pytest.raises(ValueError, match=message) as error:
        read_jobs(EndToEnd, [path])
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("\n", ",\n"), "line 1: column '' is unknown here"),
        (lambda text: text.replace(",size", ",experiment,size"), "line 1: column 'experiment' is duplicated"),
        (lambda text: text.removesuffix("\n") + ",1\n", "line 2: more or fewer fields than the 48 columns"),
        (lambda text: text.rpartition(",")[0] + "\n", "line 2: more or fewer fields than the 48 columns"),
        (lambda text: text.replace(",nano,", ",na\rno,"), "line 2: more or fewer fields than the 48 columns"),
        (lambda text: text.replace(",nano,", f",{'n' * 200_000},"), "field larger than field limit"),
        (lambda text: "", "column 'experiment' is missing"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, change, message):
    path = tmp_path / "a.csv"
    write_job(path, EndToEnd, ROWS[:1])
    path.write_text(change(path.read_text()))
    seal(path)
    with pytest.raises(ValueError, match=message) as error:
        read_jobs(EndToEnd, [path])
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"std": 0.0}, "median is 2.5; allowed: within 0 of the mean, 2.25, given std and n"),
        ({"std": 1e-3, "mean": 2.5}, "p20 is 1.75; allowed: within .* of the mean, 2.5, given std and n"),
        ({"n": 1}, "n is 1; planned: 3"),
    ],
)
def test_statistics_that_no_samples_have_are_refused_without_samples(tmp_path, changes, message):
    measurement = dataclasses.replace(summarize("step", "ms", TIMES), samples="", **changes)
    with pytest.raises(ValueError, match=message):
        write_job(tmp_path / "a.csv", EndToEnd, [make_row(CELL, measurement, provenance())])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [2, 3, 10, 100, 5000])
@pytest.mark.parametrize("shape", ["even", "one outlier", "constant", "two values"])
def test_statistics_of_real_samples_are_accepted(tmp_path, count, shape):
    random = np.random.default_rng(count)
    samples = {
        "even": random.uniform(0.9, 1.1, count),
        "one outlier": np.append(np.full(count - 1, 1e-3), 1e3),
        "constant": np.full(count, 0.1),
        "two values": random.choice([1e-6, 1.0], count),
    }[shape].tolist()
    for measurement in (
        summarize("step", "ms", samples),
        dataclasses.replace(summarize("step", "ms", samples), samples=""),
    ):
        write_job(tmp_path / "a.csv", EndToEnd, [make_row(EndToEnd(steps=count), measurement, provenance())])
        assert read_jobs(EndToEnd, [tmp_path / "a.csv"])[0].n == count


def test_a_hand_edit_a_cut_file_and_a_missing_digest_are_seen(tmp_path):
    path = tmp_path / "a.csv"
    write_job(path, EndToEnd, ROWS)
    subprocess.run(["sha256sum", "--check", "--quiet", "a.csv.sha256"], cwd=tmp_path, check=True)
    whole = path.read_text()
    for changed in (whole.replace("2.25", "2.24"), whole.rsplit("\n", 2)[0]):
        path.write_text(changed)
        with pytest.raises(
            ValueError, match=r"a\.csv: changed since it was written: its SHA-256 is [0-9a-f]{64}, but a"
        ):
            read_jobs(EndToEnd, [path])
    path.write_text(whole)
    assert read_jobs(EndToEnd, [path]) == ROWS
    for damaged in (b"", b"\xff\xfe\0", digest_path(path).read_bytes()[:40], b"(interrupted)  a.csv\n"):
        digest_path(path).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.csv\.sha256: begins with .*; allowed: the SHA-256 of a\.csv in hex"):
            read_jobs(EndToEnd, [path])
    digest_path(path).unlink()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv is not a file; allowed: a CSV that a measurement wrote"):
        read_jobs(EndToEnd, [tmp_path / "folder.csv"])
    with pytest.raises(ValueError, match=r"a\.csv: a\.csv\.sha256 is missing next to it"):
        read_jobs(EndToEnd, [path])


@dataclass(frozen=True, kw_only=True)
class Detailed(Accumulation):
    details: ClassVar[tuple[str, ...]] = ("stage", "kernel")


def test_details_tell_rows_of_one_metric_apart(tmp_path):
    path = tmp_path / "a.csv"
    rows = [
        make_row(Detailed(), summarize("sum", "", [1.0, 2.0], keep=False, details=details), provenance())
        for details in ({"stage": "forward", "kernel": "a<b, c>"}, {"stage": "loss"}, {})
    ]
    write_job(path, Detailed, rows)
    assert read_jobs(Detailed, [path]) == rows
    assert [(row.stage, row.kernel, row.samples) for row in rows] == [
        ("forward", "a<b, c>", ""),
        ("loss", "", ""),
        ("", "", ""),
    ]
    write_job(path, Detailed, [*rows, rows[0]])
    with pytest.raises(ValueError, match=r"line 5: metric is 'sum', which .*line 2 already has for the same cell"):
        read_jobs(Detailed, [path])


@pytest.mark.parametrize(("experiment", "details", "message"), mistakes("details"))
def test_a_detail_that_no_row_has_is_named(tmp_path, experiment, details, message):
    kind = EXPERIMENTS[experiment]
    metric = next(name for name, unit in kind.metrics.items() if unit == "ms")
    row = make_row(kind(), summarize(metric, "ms", [1.0], details=details), provenance())
    with pytest.raises(ValueError, match=message):
        write_job(tmp_path / "a.csv", kind, [row])


def test_older_files_stand_for_the_value_that_a_later_parameter_had_then(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    write_job(path, Accumulation, [make_row(Accumulation(cast=True), summarize("sum", "", [1.0]), provenance())])
    rewrite(path, {"cast": None})
    with pytest.raises(ValueError, match="line 1: column 'cast' is missing"):
        read_jobs(Accumulation, [path])
    monkeypatch.setattr(Accumulation, "added_later", {"cast": False})
    (row,) = read_jobs(Accumulation, [path])
    assert row.cast is False


def test_every_recorded_file_is_valid():
    for raw in sorted((ROOT / "recorded").glob("**/raw")):
        for name, experiment in EXPERIMENTS.items():
            rows = read_jobs(experiment, sorted((raw / name).glob("*.csv")), machine=raw.parent.name)
            assert rows or name not in {path.name for path in raw.iterdir()}
