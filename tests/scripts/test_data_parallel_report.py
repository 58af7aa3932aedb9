"""Numbers computed of data-parallel training, on worked-out steps."""

import math

import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.data_parallel import PHASE_STEPS, TIMELINE_PARTS, DataParallelTraining
from cs336_systems.record.measurement import summarize
from cs336_systems.record.rows import make_row
from scripts.answers import ddp_bucketed_benchmarking
from scripts.stages.tables import merge
from scripts.views.bucket_sizes import bucket_model, predicted
from scripts.views.comparison import contenders, fastest, traced_cell
from scripts.views.data import load, one, select
from scripts.views.data_parallel import stack, stacked_cells
from scripts.views.verdicts import against
from tests.samples import H200, provenance, write_raw

CELL = {"size": "nano", "context": 8, "rounds": 3, "steps": 2}
BASELINE = [100.0, 102.0, 130.0, 132.0, 90.0, 92.0]
"""The second round is slower, the third one faster; the rounds' medians are 101, 131 and 91."""
WAITS = {
    ("naive", ""): 40,
    ("flat", ""): 30,
    ("overlapped", ""): 20,
    ("bucketed", "10"): 18,
    ("bucketed", "100"): 12,
    ("symmetric_memory", "100"): 4,
    ("ddp", "25"): 16,
    ("ddp_view", "100"): 10,
}
"""Waiting time of each contender in every step, ms."""
OVERHEAD, BANDWIDTH = 50e-6, 200e9
"""Of the all-reduces, seconds and bytes/s."""
MESSAGES = {("naive", ""): 21, ("flat", ""): 1, ("overlapped", ""): 21, ("bucketed", "10"): 8, ("bucketed", "100"): 2}
GRADIENTS_MB = 200.0


def contender(wrapper, bucket_mb, waits, *, hidden=0.0, stretched=0.0, gpu=True):
    """A contender whose profiled step has the given parts, ms, next to the 90 ms of the baseline's compute."""
    details = {"wrapper": wrapper, "bucket_mb": bucket_mb}
    rows = [summarize("step", "ms", [time + waits for time in BASELINE], details=details)]
    rows += [
        summarize(phase, "ms", [milliseconds] * PHASE_STEPS, details=details)
        for phase, milliseconds in {"forward": 40.0, "backward": 50.0, "optimizer": 10.0}.items()
    ]
    if wrapper != "none":
        rows.append(summarize("synchronization", "ms", [float(waits)] * PHASE_STEPS, details=details))
        rows.append(summarize("communicated", "MB", [GRADIENTS_MB], details=details))
    if (wrapper, bucket_mb) in MESSAGES:
        rows.append(summarize("messages", "", [MESSAGES[wrapper, bucket_mb]], details=details))
    if gpu:
        compute, uncovered = 90 + stretched, waits - stretched
        times = {
            "compute": compute,
            "communication": hidden + uncovered,
            "hidden": hidden,
            "device_busy": compute + uncovered,
            "timeline_length": compute + uncovered + 10,
        }
        rows += [summarize(name, "ms", [float(time)], details=details) for name, time in times.items()]
        for kind in ("compute", "communication", "optimizer"):
            shares = [0.25] * TIMELINE_PARTS
            rows.append(summarize("timeline", "share", shares, details=details | {"kind": kind}))
        rows.append(summarize("peak_memory", "MiB", [1024.0 + len(wrapper)], details=details))
    return rows


def everyone(gpu=True):
    """All contenders, by wrapper and bucket size."""
    found = {("none", ""): contender("none", "", 0, gpu=gpu)}
    for (wrapper, size), waits in WAITS.items():
        found[wrapper, size] = contender(wrapper, size, waits, gpu=gpu)
    return found


def table_of(folder, experiment, rows, gpu=True):
    """The table of rows, given as pairs of cell and measurement, through the same files as a run's."""
    origin = provenance(**(H200 if gpu else {}))
    raw = write_raw(folder, experiment, [make_row(cell, measurement, origin) for cell, measurement in rows])
    merge(experiment, [str(raw)], str(folder / f"{experiment}.csv"), "nvidia-h200" if gpu else "cpu")
    return load(experiment, folder / f"{experiment}.csv")


def training(folder, found, gpu=True, **cell):
    """The table of contenders of one cell."""
    rows = [row for rows in found.values() for row in rows]
    return table_of(folder, "data_parallel", [(DataParallelTraining(**CELL | cell), row) for row in rows], gpu)


@pytest.fixture
def all_reduce(tmp_path):
    """All-reduces on a known line."""

    def make(gpu=True):
        rows = []
        for megabytes in (1, 10, 100):
            cell = AllReduce(backend="nccl" if gpu else "gloo", megabytes=megabytes, steps=2)
            seconds = OVERHEAD + 1e6 * megabytes / BANDWIDTH
            rows.append((cell, summarize("time", "ms", [999 * seconds, 1001 * seconds])))
            rows.append((cell, summarize("rank_spread", "ms", [0.0] * 2)))
            rows.append((cell, summarize("wrong_numbers", "", [0.0] * 2)))
            for metric in ("algorithm_bandwidth", "bus_bandwidth"):
                rows.append((cell, summarize(metric, "GB/s", [megabytes / 1e3 / seconds] * 2)))
        return table_of(tmp_path, "all_reduce", rows, gpu)

    return make


def test_exposed_communication_is_that_of_the_same_round(tmp_path):
    found = everyone()
    steps = [131.0, 133.0, 171.0, 173.0, 126.0, 128.0]  # rounds' medians: 132, 172, 127
    found["naive", ""][0] = summarize("step", "ms", steps, details={"wrapper": "naive", "bucket_mb": ""})
    naive = one(contenders(DataParallelTraining, training(tmp_path, found)), contender="naive")
    assert [naive[name] for name in ("exposed", "exposed_least", "exposed_most")] == [36, 31, 41]
    assert naive["median"] - 101 != 36  # What the medians over all rounds would say.
    assert math.isnan(one(contenders(DataParallelTraining, training(tmp_path, found)), contender="none")["exposed"])


def test_nothing_is_beyond_a_baseline_that_is_unsteady(tmp_path):
    found = everyone()
    for wrapper, steps in {
        "none": [99, 101, 160, 162, 99, 101],
        "naive": [201, 202] * 3,
        "flat": [181, 182] * 3,
    }.items():
        found[wrapper, ""][0] = summarize("step", "ms", steps, details={"wrapper": wrapper, "bucket_mb": ""})
    rows = contenders(DataParallelTraining, training(tmp_path, found))
    assert rows["exposed"].isna().all()
    assert against(one(rows, contender="flat"), one(rows, contender="naive")).faster


def test_a_profiled_step_is_taken_apart(tmp_path):
    found = everyone() | {("ddp_view", "100"): contender("ddp_view", "100", 10, hidden=12, stretched=4)}
    table = training(tmp_path, found)
    row = one(contenders(DataParallelTraining, table), contender="ddp_view")
    assert (row["stretched"], row["uncovered"], row["idle"], row["longer"]) == (4, 6, 0, 10)
    assert row["stretch"] == pytest.approx(94 / 90)
    assert row["hidden_share"] == pytest.approx(12 / 18)
    assert row["busy_share"] == pytest.approx(100 / 110)
    assert one(contenders(DataParallelTraining, table), contender="naive")["synchronization_share"] == pytest.approx(
        40 / 140
    )
    (cell,) = stacked_cells(contenders(DataParallelTraining, table))
    assert stack(cell, row) == [90, 4, 6, 10]
    assert stack(cell, one(cell, contender="none")) == [90, 0, 0, 10]
    assert fastest(traced_cell(contenders(DataParallelTraining, table)), ["ddp", "ddp_view"])["bucket_mb"] == "100"


def test_the_models_constants_and_predictions(tmp_path, all_reduce):
    table = training(tmp_path, everyone())
    cell = contenders(DataParallelTraining, table)
    model = bucket_model(all_reduce(), cell)
    assert (model.size, model.backward) == (200e6, pytest.approx(0.05))
    assert (model.call_seconds, model.bandwidth) == (
        pytest.approx(OVERHEAD, rel=1e-3),
        pytest.approx(BANDWIDTH, rel=1e-3),
    )
    for size, calls in (("10", 8), ("100", 2)):
        expected = 1e3 * (
            OVERHEAD + 200e6 / calls / BANDWIDTH
        )  # 50 ms of backward pass: a call is done before the next one
        assert predicted(model, one(cell, contender="bucketed", bucket_mb=size)) == pytest.approx(expected, rel=1e-3)
    answer = ddp_bucketed_benchmarking.answers({"data_parallel": table, "all_reduce": all_reduce()})["model"]
    (row,) = answer.evidence[0].table.rows
    # By the handout's assumption √(s·w·o) and 2√(s·o/w): 44.7 MB and 0.447 ms.
    assert [row[place] for place in (0, 1, 2, 3, 6, 7)] == ["2 GPUs, fp32", "44.7", "0.45", "50.0", "100", "12.0"]
    without_line = all_reduce().iloc[:0]
    assert bucket_model(without_line, cell) is None


def test_of_a_cell_measured_twice_all_that_was_tried_is_shown(tmp_path):
    plain, tried = DataParallelTraining(**CELL), DataParallelTraining(**CELL, tried=True)
    rows = [(cell, row) for cell in (plain, tried) for rows in everyone().values() for row in rows]
    rows += [(tried, row) for row in contender("grouped", "100", 9)]
    found = contenders(DataParallelTraining, table_of(tmp_path, "data_parallel", rows))
    assert len(found) == 2 + len(WAITS)
    assert len(select(found, contender="grouped")) == 1


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ([20, 12, 18], True),
        ([20, 18, 12], False),
        ([12, 18, 20], False),
        ([20, 19.9, 20], None),
    ],
)
def test_whether_the_best_bucket_is_in_between(tmp_path, waits, found):
    sizes = zip(("1", "10", "100"), waits, strict=True)
    table = training(tmp_path, {size: contender("bucketed", size, wait) for size, wait in sizes})
    rows = contenders(DataParallelTraining, table)
    assert ddp_bucketed_benchmarking.in_between(rows.assign(messages=[21.0, 8.0, 2.0])) is found
    # Sizes that make equally many calls are one program: two are left, of which neither is in between.
    assert ddp_bucketed_benchmarking.in_between(rows.assign(messages=[21.0, 21.0, 2.0])) is None
