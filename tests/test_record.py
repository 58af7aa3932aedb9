"""The CSV record: statistics, the round trip, atomic writing, and what is refused on reading."""

import csv

import numpy as np
import pytest

from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.record import Measurement, make_row, read_rows, summarize, write_rows
from tests.samples import H200, provenance


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_statistics_agree_with_numpy(count):
    samples = np.random.default_rng(count).exponential(size=count).tolist()
    summary = summarize("step", "ms", samples)
    assert summary.n == count
    assert summary.mean == pytest.approx(np.mean(samples))
    assert summary.median == pytest.approx(np.median(samples))
    assert (summary.p20, summary.p80) == pytest.approx(tuple(np.percentile(samples, [20, 80])))
    assert summary.std is None if count == 1 else summary.std == pytest.approx(np.std(samples, ddof=1))


ROWS = [
    make_row(EndToEnd(size="nano"), summarize("step", "ms", [1.25, 2.5]), provenance()),
    make_row(
        EndToEnd(compiled=True), Measurement(metric="cell", status="oom", message="a, b\n\"c\" ü 中 'd'"), provenance()
    ),
    make_row(
        EndToEnd(size="mine:d_model=8,d_ff=8,num_layers=1,num_heads=2"),
        Measurement(metric="logits_dtype", n=1, value="bfloat16"),
        provenance(git_dirty=None),
    ),
]


def test_rows_survive_the_round_trip(tmp_path):
    write_rows(tmp_path / "a.csv", EndToEnd, ROWS)
    assert read_rows(EndToEnd, [tmp_path / "a.csv"]) == ROWS


@pytest.mark.parametrize("text", ["a\rb", "\r\n", "a\nb", 'a "b"', "a, b", "ü 中 שלום", " a "])
def test_a_text_survives_the_round_trip_but_for_carriage_returns(tmp_path, text):
    measurement = Measurement(metric="cell", status="failed", message=text)
    write_rows(tmp_path / "a.csv", EndToEnd, [make_row(EndToEnd(), measurement, provenance())])
    (row,) = read_rows(EndToEnd, [tmp_path / "a.csv"])
    assert row.message == text.replace("\r", " ")


def test_a_table_may_have_no_rows(tmp_path):
    write_rows(tmp_path / "a.csv", EndToEnd, [])
    assert read_rows(EndToEnd, [tmp_path / "a.csv"]) == []


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.csv"
    write_rows(path, EndToEnd, ROWS[:1])
    other = make_row(Accumulation(), summarize("sum", "", [1.0]), provenance())
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        write_rows(path, EndToEnd, [ROWS[0], other])
    assert read_rows(EndToEnd, [path]) == ROWS[:1]
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def rewrite(path, change):
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    for record in records:
        change(record)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda row: row.pop("median"), "column 'median' is missing"),
        (lambda row: row.update(speed=1), "line 1: column 'speed' is not known here; allowed: experiment, size"),
        (lambda row: row.update(speed=""), "line 1: column 'speed' is not known here; allowed: experiment, size"),
        (lambda row: row.update(context="0"), "line 2: context is '0'; allowed: greater than or equal to 1"),
        (lambda row: row.update(context=""), "line 2: context is missing"),
        (lambda row: row.update(size="huge"), "line 2: size is 'huge'; allowed: nano"),
        (lambda row: row.update(status="fine"), "line 2: status is 'fine'; allowed: 'ok', 'oom'"),
        (lambda row: row.update(mean="fast"), "line 2: mean is 'fast'"),
        (lambda row: row.update(experiment="flash"), "line 2: experiment is 'flash'"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path, change, complaint):
    path = tmp_path / "a.csv"
    write_rows(path, EndToEnd, ROWS[:1])
    rewrite(path, change)
    with pytest.raises(ValueError, match=complaint) as error:
        read_rows(EndToEnd, [path])
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("\n", ",\n"), "line 1: column '' is not known here"),
        (lambda text: text.replace(",size", ",experiment,size"), "line 1: column 'experiment' is twice there"),
        (lambda text: text.removesuffix("\n") + ",1\n", "line 2: more or fewer fields than the 39 columns"),
        (lambda text: text.rpartition(",")[0] + "\n", "line 2: more or fewer fields than the 39 columns"),
        (lambda text: text.replace(",nano,", ",na\rno,"), "line 2: more or fewer fields than the 39 columns"),
        (lambda text: text.replace(",nano,", f",{'n' * 200_000},"), "field larger than field limit"),
        (lambda text: "", "column 'experiment' is missing"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, change, complaint):
    path = tmp_path / "a.csv"
    write_rows(path, EndToEnd, ROWS[:1])
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=complaint) as error:
        read_rows(EndToEnd, [path])
    assert str(path) in str(error.value)


def test_two_gpu_models_are_refused(tmp_path):
    for name, gpu in [("a", "NVIDIA H200"), ("b", "NVIDIA L4")]:
        row = make_row(EndToEnd(), summarize("step", "ms", [1.0]), provenance(**H200 | {"gpu": gpu}))
        write_rows(tmp_path / f"{name}.csv", EndToEnd, [row])
    with pytest.raises(ValueError, match=r"two GPU models: NVIDIA H200 .*a.csv\) and NVIDIA L4 .*b.csv"):
        read_rows(EndToEnd, [tmp_path / "a.csv", tmp_path / "b.csv"])
