"""The last chapter's sentences, on one training step of the handout's size."""

import pytest

from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.record import make_row
from scripts.answers import conclusion
from scripts.views.data import frame
from tests.prose import CPU, GPU, contest, prose, table
from tests.samples import OOM, provenance

UNLISTED = provenance(gpu="NVIDIA Unknown", gpu_count=1)


def concluded(single, several=(), origin=GPU, lost=()):
    """The chapter: ms of one device by precision, of the naive wrapper with 2, 4, ... in bf16; cells out of memory."""
    end_to_end = table("end_to_end", origin, {EndToEnd(size="xl", precision=name): {"step": ms} for name, ms in single})
    ranks = {
        DataParallelTraining(size="xl", precision="bf16", compiled=True, processes=2 * place): [
            ({"wrapper": "naive"}, {"step": ms})
        ]
        for place, ms in enumerate(several, start=1)
    }
    failed = frame("end_to_end", [make_row(cell, OOM, origin) for cell in lost])
    empty = {name: frame(name, []) for name in ("kernel_profile", "optimizer_sharding")}
    tables = {
        "end_to_end": failed if not single else end_to_end,
        "data_parallel": contest("data_parallel", origin, ranks),
        **empty,
    }
    return prose("conclusion", conclusion.answers(tables), origin)


ONE = [("fp32", 1024.0)]
"""A step of 4 times 512 tokens in 1024 ms: 2000 tokens per second."""


@pytest.mark.parametrize(
    ("several", "origin", "sentence"),
    [
        ([], GPU, "Most tokens per second, 2000, has _fp32_ on 1 GPU. "),
        ([], CPU, "Most tokens per second, 2000, has _fp32_ on 1 process. "),
        (
            [512.0],
            GPU,
            "8000, has _bf16, compiled, naive data parallel_ on 2 GPUs: 4.00× as many as _fp32_ on 1.",
        ),
        (
            [1024.0],
            CPU,
            "4000, has _bf16, compiled, naive data parallel_ on 2 processes: 2.00× as many as _fp32_ on 1.",
        ),
        ([4096.0], GPU, "Most tokens per second, 2000, has _fp32_ on 1 GPU. "),
    ],
)
def test_what_has_most_tokens_per_second(several, origin, sentence):
    text = concluded(ONE, several, origin)
    assert sentence in text
    assert f"sequences of 512 tokens per {'GPU' if origin.gpu else 'process'}, through" in text


def test_the_highest_utilization_is_of_a_known_peak():
    # bf16 in half the time is a smaller share of a peak that is nearly 15 times as high.
    text = concluded([*ONE, ("bf16", 512.0)])
    assert "$C$ the dense peak of the precision, 989 TFLOP/s in bf16 and 67.0 TFLOP/s in fp32. The" in text.replace(
        "~", " "
    )
    assert "of its precision's peak, has _fp32_ on 1." in text
    text = concluded(ONE, origin=UNLISTED)
    assert "$C$ the dense peak of the precision. The peak of memory" in text
    assert "The highest utilization" not in text


def test_what_is_left_out_and_why():
    several = [1.0, 1.0]
    text = concluded([], several, lost=[EndToEnd(size="xl")])
    assert "Left out, as it was not measured (out of memory): fp32. " in text
    assert "Left out, as they were not measured (not run): bf16 autocast, bf16, our attention," in text
    assert "none is in these measurements: not measured." in concluded([])


def test_every_setting_is_of_its_own_rows():
    bf16 = {"size": "xl", "precision": "bf16"}
    uneven = {"step": [900.0, 1000.0, 1024.0, 1040.0, 1200.0], "peak_memory": [20480.0, 30720.0]}
    of_one = {EndToEnd(size="xl", precision="fp32"): uneven}
    of_one |= {EndToEnd(size="xl", precision="fp32", context=1024): {"step": 1.0}}
    of_one |= {EndToEnd(**bf16): {"step": 512.0}, EndToEnd(**bf16, compiled=True): {"step": 1.0}}
    profiled = {
        KernelProfile(**bf16, attention="flash"): {"step": 256.0},
        KernelProfile(**bf16, attention="plain"): {"step": 2.0},
        KernelProfile(**bf16, attention="plain", compiled=True): {"step": 128.0},
    }
    ranks = {
        DataParallelTraining(**bf16, processes=2, compiled=True): [
            ({"wrapper": "naive"}, {"step": 512.0}),
            ({"wrapper": "bucketed", "bucket_mb": "25"}, {"step": 400.0, "peak_memory": 4096.0}),
            ({"wrapper": "bucketed", "bucket_mb": "100"}, {"step": 256.0, "peak_memory": 2048.0}),
            ({"wrapper": "peer_memory"}, {"step": 200.0, "peak_memory": 1024.0, "outside_memory": 512.0}),
            ({"wrapper": "overlapped"}, {"step": 2.0}),
            ({"wrapper": "ddp"}, {"step": 2.0}),
        ],
        DataParallelTraining(**bf16, processes=2): [({"wrapper": "naive"}, {"step": 2.0})],
    }
    tables = {
        "end_to_end": table("end_to_end", GPU, of_one),
        "kernel_profile": table("kernel_profile", GPU, profiled),
        "data_parallel": contest("data_parallel", GPU, ranks),
        "optimizer_sharding": frame("optimizer_sharding", []),
    }
    title, *rows = conclusion.answers(tables)["steps"].rows
    assert title == ["1 GPU"]
    # 4 times 512 tokens on each device; the percentiles lie four fifths, and one fifth, of the way between two steps.
    assert [[*row[:6], row[7]] for row in rows if len(row) > 1] == [
        ["fp32", "1024.0 *", "980.0–1072.0", "5", "2000", "1.00", "30.0"],
        ["bf16 autocast", "512.0", "512.0–512.0", "1", "4000", "2.00", "–"],
        ["bf16, our attention", "256.0", "256.0–256.0", "1", "8000", "4.00", "–"],
        ["bf16, compiled", "128.0", "128.0–128.0", "1", "16000", "8.00", "–"],
        ["bf16, compiled, naive data parallel", "512.0", "512.0–512.0", "1", "8000", "4.00", "–"],
        ["bf16, compiled, bucketed", "256.0", "256.0–256.0", "1", "16000", "8.00", "2.00"],
        ["bf16, compiled, peer memory", "200.0", "200.0–200.0", "1", "20480", "10.24", "1.50"],
    ]
