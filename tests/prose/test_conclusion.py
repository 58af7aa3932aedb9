"""The last chapter's sentences, on one training step of the handout's size."""

import pytest

from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.record import make_row
from scripts.answers import conclusion
from scripts.data import frame
from tests.prose import CPU, GPU, contest, prose, table
from tests.samples import OOM, provenance

UNLISTED = provenance(gpu="NVIDIA Unknown", gpu_count=1)


def concluded(single, several=(), origin=GPU, lost=()):
    """The chapter: ms of one device by precision, of the naive wrapper with 2, 4, ... in bf16; cells out of memory."""
    end_to_end = table("end_to_end", origin, {EndToEnd(size="xl", precision=name): {"step": ms} for name, ms in single})
    ranks = {
        DataParallelTraining(size="xl", precision="bf16", processes=2 * place): [({"wrapper": "naive"}, {"step": ms})]
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
            "Most tokens per second, 8000, has _bf16, naive data parallel_ on 2 GPUs: 4.00× as many as _fp32_ on 1.",
        ),
        ([1024.0], CPU, "4000, has _bf16, naive data parallel_ on 2 processes: 2.00× as many as _fp32_ on 1."),
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
