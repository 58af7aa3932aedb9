"""What the report says of data-parallel training, on worked-out steps: each verdict, each reason, each gap."""

import contextlib
import importlib
import math

import pytest

from cs336_systems.experiments.all_reduce import AllReduce
from cs336_systems.experiments.data_parallel import PHASE_STEPS, TIMELINE_PARTS, DataParallelTraining
from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.measure.measurement import WHOLE_CELL, Measurement, summarize
from cs336_systems.measure.record import make_row
from scripts.answers import beyond_nccl, ddp_bucketed_benchmarking, naive_ddp_benchmarking
from scripts.draw import draw
from scripts.rendering.contents import read_contents
from scripts.rendering.markup import Typst
from scripts.tables import merge
from scripts.views.bucket_sizes import bucket_model, predicted
from scripts.views.comparison import contenders, fastest, traced_cell, unsteady_cells
from scripts.views.data import load, one, select
from scripts.views.progress import verdict
from scripts.writeup import environment, picture_of, typeset
from tests.samples import H200, ROOT, pdf_text, provenance, squeeze, write_raw

CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
NAMES = [
    "distributed_communication_single_node",
    "naive_ddp_benchmarking",
    "minimal_ddp_flat_benchmarking",
    "ddp_overlap_individual_parameters_benchmarking",
    "ddp_bucketed_benchmarking",
    "beyond_nccl",
]
CELL = {"size": "nano", "context": 8, "rounds": 3, "steps": 2}
FLOOR = [100.0, 102.0, 130.0, 132.0, 90.0, 92.0]
"""The second round is slower, the third one faster; the rounds' medians are 101, 131 and 91."""
WAITS = {
    ("naive", ""): 40,
    ("flat", ""): 30,
    ("overlapped", ""): 20,
    ("bucketed", "10"): 18,
    ("bucketed", "100"): 12,
    ("peer_memory", "100"): 4,
    ("ddp", "25"): 16,
    ("ddp_view", "100"): 10,
}
"""What each contender waits for in every step, ms."""
OVERHEAD, BANDWIDTH = 50e-6, 200e9
"""Of the all-reduces, seconds and bytes/s."""
MESSAGES = {("naive", ""): 21, ("flat", ""): 1, ("overlapped", ""): 21, ("bucketed", "10"): 8, ("bucketed", "100"): 2}
GRADIENTS_MB = 200.0


def contender(wrapper, bucket_mb, waits, *, hidden=0.0, stretched=0.0, gpu=True):
    """A contender whose profiled step has the given parts, ms, beside the 90 ms of the floor's compute."""
    details = {"wrapper": wrapper, "bucket_mb": bucket_mb}
    rows = [summarize("step", "ms", [time + waits for time in FLOOR], details=details)]
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


def lost(wrapper, bucket_mb="", message="each process needs 9 GB"):
    details = {"wrapper": wrapper, "bucket_mb": bucket_mb}
    return [Measurement(metric="step", unit="ms", status="skipped", message=message, details=details)]


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


def typeset_sections(folder, tables, gpu="NVIDIA H200", draws=False):
    """The text of all sections on data-parallel training, typeset by themselves, and the figures that they show.

    Unless these are drawn, an empty one stands for each.
    """
    for name in ("theme.typ", "references.bib"):
        (folder / name).write_bytes((ROOT / "report" / name).read_bytes())
    jinja = environment(ROOT / "report")
    shown = []

    def figure(name):
        shown.append(name)
        empty = Typst(f'#figure([], kind: image, supplement: "Figure") <fig-{name}>')
        return picture_of(CONTENTS, "a machine")(name) if draws else empty

    text = ['#import "/theme.typ": *', '#let picture = picture.with("/")', "#show: report"]
    for name in NAMES:
        answers = importlib.import_module(f"scripts.answers.{name}").answers(tables)
        summary = {"machine": "a machine", "gpu": gpu}
        template = jinja.get_template(f"sections/{name}.typ.j2")
        text += [f"== {name}", template.render(a=answers, summary=summary, figure=figure, reproduce=lambda name: "")]
    text.append("= Coverage <coverage>\n= Checks <checks>")
    (folder / "text.typ").write_text("\n".join(text), encoding="utf-8")
    with contextlib.chdir(folder):
        for name in shown if draws else []:
            entry = CONTENTS.figures[name]
            paths = {experiment: f"{experiment}.csv" for experiment in EXPERIMENTS}
            draw(entry.script, entry.options, f"{name}.svg", **entry.sources(paths, ""))
        typeset(folder / "text.typ", folder / "text.pdf")
    return pdf_text(folder / "text.pdf"), shown


def test_exposed_communication_is_that_of_the_same_round(tmp_path):
    found = everyone()
    steps = [131.0, 133.0, 171.0, 173.0, 126.0, 128.0]  # rounds' medians: 132, 172, 127
    found["naive", ""][0] = summarize("step", "ms", steps, details={"wrapper": "naive", "bucket_mb": ""})
    naive = one(contenders(DataParallelTraining, training(tmp_path, found)), contender="naive")
    assert [naive[name] for name in ("exposed", "exposed_least", "exposed_most")] == [36, 31, 41]
    assert naive["median"] - 101 != 36  # What the medians over all rounds would say.
    assert math.isnan(one(contenders(DataParallelTraining, training(tmp_path, found)), contender="none")["exposed"])


def test_nothing_is_beyond_a_floor_that_is_unsteady(tmp_path):
    found = everyone()
    for wrapper, steps in {
        "none": [99, 101, 160, 162, 99, 101],
        "naive": [201, 202] * 3,
        "flat": [181, 182] * 3,
    }.items():
        found[wrapper, ""][0] = summarize("step", "ms", steps, details={"wrapper": wrapper, "bucket_mb": ""})
    rows = contenders(DataParallelTraining, training(tmp_path, found))
    assert rows["exposed"].isna().all()
    assert unsteady_cells(rows) == ["2 GPUs, fp32"]
    assert verdict(one(rows, contender="naive"), one(rows, contender="flat"))["verdict"] == "faster"


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
    parts = beyond_nccl.answers({"data_parallel": table})["parts"]
    assert parts.rows[-1] == ["PyTorch's, view, 100 MiB", "10.0", "4.00", "6.00", "0.00"]
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
    found = ddp_bucketed_benchmarking.answers({"data_parallel": table, "all_reduce": all_reduce()})
    name, backward, *_, best, exposed, left, error = found["comparison"].rows[0]
    assert (name, backward, best, exposed, left) == ("2 GPUs, fp32", "50.0", "100", "12.0", "0.55")
    assert float(error) == pytest.approx(12 - 1e3 * (OVERHEAD + 100e6 / BANDWIDTH), abs=0.06)
    assert found["sizes_right"] == 0  # It picks 10 MB.
    assert found["most_stretched"] is None
    without_line = all_reduce().iloc[:0]
    assert bucket_model(without_line, cell) is None


def test_calls_and_bytes_are_compared_with_the_line(tmp_path, all_reduce):
    expected = 1e3 * (21 * OVERHEAD + 200e6 / BANDWIDTH)
    found = naive_ddp_benchmarking.answers(
        {"data_parallel": training(tmp_path, everyone()), "all_reduce": all_reduce()}
    )
    assert found["expected"]["calls"]["most"] == (pytest.approx(21e3 * OVERHEAD, rel=1e-3), "2 GPUs, fp32")
    assert found["expected"]["ratio"]["least"][0] == pytest.approx(40 / expected, rel=1e-3)
    assert (found["messages"], found["size"]) == (21, 200)
    assert found["expected"]["near"] is False


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "from slow to fast, buckets at least as fast as overlapped, holds."),
        ({"hidden": 30, "stretched": 35}, "It is slower by 5.00 ms: in the profiled step compute takes 35.0 ms longer"),
        ({"hidden": 0}, "It is slower by 5.00 ms: in the profiled step 5.00 ms more of its communication run beside"),
        ({"gpu": False}, "It is slower by 5.00 ms; no column says why."),
        ({"waits": 30.5}, "The two steps are no further apart than their samples scatter."),
    ],
)
def test_the_order_holds_or_has_a_reason(tmp_path, all_reduce, change, says):
    found = everyone()
    if change:
        found["overlapped", ""] = contender("overlapped", "", **{"waits": 35} | change)
    tables = {"data_parallel": training(tmp_path, found), "all_reduce": all_reduce()}
    text, _ = typeset_sections(tmp_path, tables)
    assert squeeze(says) in text
    assert (squeeze("It fails between flat and overlapped") in text) == bool(change)
    assert squeeze("what slows compute down") not in text  # nothing does


def test_a_gpus_sections_name_what_limits_them(tmp_path, all_reduce):
    found = everyone() | {
        ("bucketed", "100"): contender("bucketed", "100", 12, hidden=20, stretched=9),
        ("peer_memory", "100"): contender("peer_memory", "100", 4, hidden=20, stretched=1),
        ("grouped", "100"): contender("grouped", "100", 8),
        ("small_last", "100"): contender("small_last", "100", 12),
        ("bf16_wire", "100"): contender("bf16_wire", "100", 16),
        ("priority", "100"): lost("priority", "100", "no streams"),
    }
    found["bf16_wire", "100"].append(
        summarize("gradient_error", "", [0.0023], details={"wrapper": "bf16_wire", "bucket_mb": "100"})
    )
    tables = {"data_parallel": training(tmp_path, found, tried=True, precision="bf16"), "all_reduce": all_reduce()}
    text, shown = typeset_sections(tmp_path, tables, draws=True)
    assert set(shown) == {"all_reduce_time", "ddp_timelines", "ddp_bucket_sizes", "ddp_exposed"}
    for words in (
        "Against PyTorch’s at its best, peer memory is faster, 1.06× as fast.",  # (101 + 10) / (101 + 4)
        "Compute takes 9.00 ms longer beside the NCCL kernels of our best buckets, and 1.00 ms beside peer memory’s",
        "what slows compute down is, for the most part, the kernels, not the bytes",
        "The largest part of peer memory’s is uncovered communication with 2 GPUs, bf16, 3.00 ms.",
        "Faster than plain buckets by more than the samples scatter: grouped, no copies.",
        "No further from plain buckets than the samples scatter: small last bucket. Slower than plain buckets by",
        "more than the samples scatter: bf16 on the wire.",
        "None of them has a shorter median step than peer memory.",
        "high-priority stream not measured: no streams",
        "off by 0.23 %",
    ):
        assert squeeze(words) in text.replace("'", "’"), words
    tiles = beyond_nccl.tiles(beyond_nccl.answers(tables))
    assert [tile.number for tile in tiles] == ["1.06×"]


def test_a_cpus_sections_speak_of_no_gpu(tmp_path, all_reduce):
    found = everyone(gpu=False)
    nothing = Measurement(metric="device_busy", unit="ms", status="skipped", message="the host computes itself")
    tables = {
        "data_parallel": training(tmp_path, found | {("", ""): [nothing]}, gpu=False),
        "all_reduce": all_reduce(gpu=False),
    }
    text, shown = typeset_sections(tmp_path, tables, gpu="", draws=True)
    assert set(shown) == {"all_reduce_time", "ddp_bucket_sizes", "ddp_exposed"}
    ours = text[text.index("naive_ddp_benchmarking") :]
    for word in ("NCCL", "copyengine", "multiprocessor", "GPUs", "profiledstep"):
        assert word not in ours, word
    assert squeeze("How much communication runs beside compute is not shown: the host computes itself.") in ours
    assert squeeze("2 processes, fp32; floor 101.0 ms") in ours
    assert not beyond_nccl.tiles(beyond_nccl.answers(tables))


def test_what_was_not_measured_says_why(tmp_path, all_reduce):
    floor = {("none", ""): everyone()["none", ""]}
    refused = {key: lost(*key) for key in WAITS}
    tables = {"data_parallel": training(tmp_path, floor | refused), "all_reduce": all_reduce().iloc[:0]}
    text, shown = typeset_sections(tmp_path, tables)
    assert shown == []
    assert text.count(squeeze("not measured: each process needs 9 GB")) == 1 + 2 + 3 + 2 + 5
    assert squeeze("The wrapper was measured in no cell") in text
    oom = {("", ""): [Measurement(metric=WHOLE_CELL, status="oom", message="CUDA out of memory")]}
    for table, why in (
        (training(tmp_path, oom), "out of memory"),
        (tables["data_parallel"].iloc[:0], "not run"),
    ):
        text, shown = typeset_sections(tmp_path, tables | {"data_parallel": table})
        assert (text.count(squeeze(f"This was not measured: {why}.")), shown) == (5, [])
        assert squeeze("A model of the overhead") in text  # the derivation needs no measurement


def test_of_a_cell_measured_twice_all_that_was_tried_is_shown(tmp_path):
    plain, tried = DataParallelTraining(**CELL), DataParallelTraining(**CELL, tried=True)
    rows = [(cell, row) for cell in (plain, tried) for rows in everyone().values() for row in rows]
    rows += [(tried, row) for row in contender("grouped", "100", 9)]
    found = contenders(DataParallelTraining, table_of(tmp_path, "data_parallel", rows))
    assert len(found) == 2 + len(WAITS)
    assert len(select(found, contender="grouped")) == 1
