"""The CSV record: statistics, writing, reading, and what a reader is told about a bad file."""

import csv
import dataclasses
import resource

import numpy
import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.record import Measurement, Provenance, make_row, read_rows, row_model, summarize, write_rows
from tests.samples import H200, provenance

NASTY = [
    "",
    " spaces ",
    'comma, "quoted"',
    "two\nlines",
    "carriage\rreturn",
    "both\r\n",
    "Grüße, Ωмега, שלום, 测量",
    "NA",
    "None",
    "0",
    "\\back\\slash\t'",
]


def row(message="", status="ok", **origin):
    cell = EndToEnd(size="nano", context=16)
    return make_row(cell, Measurement(metric="cell", status=status, message=message), provenance(**origin))


@pytest.fixture
def recorded(tmp_path):
    """A CSV file of one row, and a function that rewrites one of its fields or its header."""
    path = tmp_path / "run.csv"
    write_rows(path, EndToEnd, [row()])

    def doctor(column=None, value=None, *, drop=None, add=None):
        with path.open(newline="", encoding="utf-8") as file:
            (record,) = csv.DictReader(file)
        record |= {column: value} if column else {}
        record |= add or {}
        record = {key: text for key, text in record.items() if key != drop}
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(record))
            writer.writeheader()
            writer.writerow(record)
        return path

    return doctor


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 101])
def test_statistics_are_numpys(n):
    samples = numpy.random.default_rng(n).lognormal(size=n)
    got = summarize("step", "ms", samples.tolist())
    expected = {
        "mean": samples.mean(),
        "std": samples.std(ddof=1),
        "median": numpy.median(samples),
        "p20": numpy.percentile(samples, 20),
        "p80": numpy.percentile(samples, 80),
    }
    assert {name: getattr(got, name) for name in expected} == pytest.approx(expected, rel=1e-12)
    assert (got.metric, got.unit, got.n) == ("step", "ms", n)


def test_one_sample_has_no_spread():
    got = summarize("build", "s", [2.5])
    assert (got.n, got.mean, got.std, got.median, got.p20, got.p80) == (1, 2.5, None, 2.5, 2.5, 2.5)


@pytest.mark.parametrize("status", ["ok", "oom", "skipped", "failed"])
def test_rows_come_back_as_they_were_written(tmp_path, status):
    rows = [row(text, status, cpu=text, git_dirty=dirty) for text in NASTY for dirty in (None, True, False)]
    rows.append(make_row(EndToEnd(compiled=True), summarize("step", "ms", [1 / 3, 1e-9]), provenance(tf32=True)))
    path = tmp_path / "deep" / "folder" / "run.csv"
    write_rows(path, EndToEnd, rows)
    assert read_rows(EndToEnd, [path]) == rows
    assert [child.name for child in path.parent.iterdir()] == ["run.csv"]


def test_a_table_without_rows_still_has_its_columns(tmp_path):
    write_rows(tmp_path / "none.csv", EndToEnd, [])
    assert read_rows(EndToEnd, [tmp_path / "none.csv"]) == []
    with (tmp_path / "none.csv").open() as file:
        assert next(csv.reader(file)) == list(row_model(EndToEnd).model_fields)


def test_columns_are_parameters_then_measurement_then_provenance():
    names = [field.name for part in (Accumulation, Measurement, Provenance) for field in dataclasses.fields(part)]
    assert list(row_model(Accumulation).model_fields) == ["experiment", *names]


@pytest.mark.parametrize("existed", [False, True])
def test_a_write_that_fails_changes_nothing(tmp_path, existed):
    path = tmp_path / "run.csv"
    if existed:
        write_rows(path, EndToEnd, [row("the old one")])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # as a full disk: no file may grow beyond
    try:
        with pytest.raises(OSError, match="File too large"):
            write_rows(path, EndToEnd, [row("x" * 10_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"drop": "median"}, r"run\.csv: column 'median' is missing; its columns are experiment, size"),
        ({"drop": "context"}, r"run\.csv: column 'context' is missing"),
        ({"add": {"colour": "blue"}}, r"run\.csv.*'colour' is not known"),
        ({"add": {"colour": ""}}, r"run\.csv.*'colour' is not known"),
        ({"column": "context", "value": "0"}, r"run\.csv, line 2: context is '0'; allowed: greater than or equal to 1"),
        ({"column": "precision", "value": "fp8"}, r"run\.csv, line 2: precision is 'fp8'; allowed: 'fp32' or 'bf16'"),
        ({"column": "size", "value": "huge"}, r"run\.csv, line 2: size is 'huge'; allowed: nano"),
        ({"column": "status", "value": "lost"}, r"run\.csv, line 2: status is 'lost'; allowed: 'ok', 'oom'"),
        ({"column": "mean", "value": "nan"}, r"run\.csv, line 2: mean is 'nan'; allowed: a finite number"),
        ({"column": "mean", "value": "fast"}, r"run\.csv, line 2: mean is 'fast'; allowed: a valid number"),
        ({"column": "experiment", "value": "flash"}, r"run\.csv, line 2: experiment is 'flash'; allowed: 'end_to_end'"),
        ({"column": "batch_size", "value": ""}, r"run\.csv, line 2: batch_size is missing"),
    ],
)
def test_a_bad_file_is_named_with_column_and_value(recorded, change, complaint):
    path = recorded(**change)
    with pytest.raises(ValueError, match=complaint) as error:
        read_rows(EndToEnd, [path])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("cut", "extra", "complaint"), [(1, "", "startup_seconds is None"), (0, ",left,over", "2 fields more than columns")]
)
def test_a_line_with_too_few_or_too_many_fields_is_named(recorded, cut, extra, complaint):
    path = recorded()
    header, line = path.read_text().splitlines()
    path.write_text(f"{header}\n{line.rsplit(',', cut)[0]}{extra}\n")
    with pytest.raises(ValueError, match=rf"run\.csv, line 2: {complaint}"):
        read_rows(EndToEnd, [path])


def test_an_empty_file_is_named(tmp_path):
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(ValueError, match=r"empty\.csv: column 'experiment' is missing; its columns are none"):
        read_rows(EndToEnd, [path])


@pytest.mark.parametrize("other", [{"gpu": "NVIDIA A10"}, {}])
def test_two_gpu_models_never_meet_in_a_table(tmp_path, other):
    write_rows(tmp_path / "a.csv", EndToEnd, [row(**H200)])
    write_rows(tmp_path / "b.csv", EndToEnd, [row(**other)])
    with pytest.raises(ValueError, match=r"two GPU models: NVIDIA H200 .*a\.csv.* and .*b\.csv.*one model a results"):
        read_rows(EndToEnd, [tmp_path / "a.csv", tmp_path / "b.csv"])


def test_gpu_counts_of_one_model_share_a_table(tmp_path):
    rows = [row(**H200), row(**(H200 | {"gpu_count": 2}))]
    for name, one in zip("ab", rows, strict=True):
        write_rows(tmp_path / name, EndToEnd, [one])
    assert read_rows(EndToEnd, [tmp_path / "a", tmp_path / "b"]) == rows
