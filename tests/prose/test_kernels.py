"""Sentences on the kernels of a step: which take most time, and who sets the pace."""

import pytest

from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.measure.measurement import summarize
from cs336_systems.measure.record import make_row
from scripts.answers import nsys_profile
from scripts.views.data import frame
from tests.prose import CPU, GPU, prose, table

GEMM, OTHER_GEMM = ("lm_head", "matmul", "nvjet_one"), ("query", "matmul", "nvjet_two")
SCORES, SOFTMAX = ("scores", "matmul", "nvjet_one"), ("softmax", "softmax", "softmax_warp_forward")
COPY = ("attention", "copy", "elementwise_kernel: direct_copy_kernel_cuda")
NORM = ("final_norm", "normalization", "elementwise_kernel: MulFunctor")
"""Range, category and name of kernels."""
LAUNCHES = 2
"""How often each of them is launched in a stage."""


def stage(kernels, whole=None):
    """A stage that always takes as long: the ms of its kernels, and its own, if it takes longer than they do."""
    busy = sum(kernels.values())
    whole = whole or busy
    return {"stage": whole, "stage_profiled": whole, "stage_busy": busy, "stage_idle": whole - busy}, kernels


def step(**stages):
    """Stages without a pause, by their kernels."""
    return {name: stage(kernels) for name, kernels in stages.items()}


def measured(cell, stages, metrics):
    """What is measured of a cell."""
    yield from (summarize(name, KernelProfile.metrics[name], [value]) for name, value in metrics.items())
    for name, (times, kernels) in stages.items():
        yield from (summarize(metric, "ms", [ms] * 2, details={"stage": name}) for metric, ms in times.items())
        for kind, ms in kernels.items():
            details = dict(zip(("range", "category", "kernel"), kind, strict=True)) | {"stage": name}
            launches = [1e3 * ms / LAUNCHES] * (LAUNCHES * cell.steps)
            yield summarize("kernel", "us", launches, keep=False, details=details)


def section(origin, cells, *, metrics=None, elsewhere=None):
    """The section's text, from the stages of each cell, its other metrics, and cells of `end_to_end`."""
    rows = [
        make_row(cell, found, origin)
        for cell, stages in cells.items()
        for found in measured(cell, stages, (metrics or {}).get(cell, {}))
    ]
    tables = {
        "kernel_profile": frame("kernel_profile", rows),
        "end_to_end": table("end_to_end", origin, elsewhere or {}),
    }
    return prose("nsys_profile", nsys_profile.answers(tables), origin)


def inference(size="nano", **others):
    return KernelProfile(size=size, mode="inference", **others)


def training(size="nano", **others):
    return KernelProfile(size=size, mode="train_step", **others)


PACED, WAITING = {"forward": stage({GEMM: 9.5}, 10.0)}, {"forward": stage({GEMM: 4.0}, 10.0)}


@pytest.mark.parametrize(
    ("origin", "nano", "sentence"),
    [
        # |10 - 10.4| / 10.4 = 3.8 %; micro, 50 % off, is not compared where the host sets its pace.
        (
            GPU,
            10.4,
            "is within 3.8 % of `end_to_end`'s timer in 1 cell in which the device sets the pace (the furthest is nano"
            " fp32); the two were measured in different processes.",
        ),
        (
            GPU,
            12.5,
            "differs by up to 20 % from `end_to_end`'s timer in 1 cell in which the device sets the pace (the furthest"
            " is nano fp32); the two were measured in different processes.",
        ),
        (
            CPU,
            10.4,
            "differs by up to 50 % from `end_to_end`'s timer in 2 cells that both measured (the furthest is micro"
            " fp32); the two were measured in different processes, between which other programs may have slowed",
        ),
    ],
)
def test_forward_passes_by_two_clocks(origin, nano, sentence):
    elsewhere = {
        EndToEnd(size=size, mode="inference"): {"forward": [ms] * 10} for size, ms in (("nano", nano), ("micro", 20.0))
    }
    text = section(origin, {inference(): PACED, inference("micro"): WAITING}, elsewhere=elsewhere)
    assert sentence in text
    assert ("In 1 of 2 cells the host sets the pace (micro fp32): the device waits" in text) == bool(origin.gpu)


def test_forward_passes_that_the_device_paces_and_no_other_clock():
    text = section(GPU, {inference(): PACED})
    assert "The device sets the pace. " in text
    both = section(GPU, {inference(): PACED, inference("micro"): PACED})
    assert "The device sets the pace in all 2 cells." in both
    assert "has no inference pass of these cells in which the device sets the pace, so there is nothing" in text


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([0.0, 0.0], "All of the kernels' time is attributed in every cell."),
        ([0.004, 0.0], "At most 0.40 % of the kernels' time in any cell could not be attributed."),
    ],
)
def test_how_much_time_is_attributed(shares, sentence):
    cells = [inference(), inference("micro")]
    metrics = {cell: {"unattributed": share} for cell, share in zip(cells, shares, strict=True)}
    assert sentence in section(GPU, dict.fromkeys(cells, PACED), metrics=metrics)


IN_ONE = "In 1 of 2 forward passes it is a matrix multiply; in the others "
SERVES_MANY = "one that copies or multiplies element by element serves many modules."
DIVIDED = {GEMM: 2.5, OTHER_GEMM: 2.5, COPY: 3.0}


@pytest.mark.parametrize(
    ("origin", "second", "sentence"),
    [
        (GPU, {GEMM: 4.0, COPY: 3.0}, "In 2 of 2 forward passes it is a matrix multiply."),
        (GPU, DIVIDED, f"{IN_ONE}the products are divided among several kernels, while {SERVES_MANY}"),
        (CPU, DIVIDED, f"{IN_ONE}{SERVES_MANY}"),
        (GPU, {GEMM: 2.0, NORM: 3.0}, f"{IN_ONE}{SERVES_MANY}"),
        (GPU, {GEMM: 2.0, SOFTMAX: 3.0}, f"{IN_ONE}one of another kind takes more (softmax)."),
    ],
)
def test_what_takes_most_of_a_forward_pass(origin, second, sentence):
    cells = {inference(): step(forward={GEMM: 9.0, COPY: 1.0}), inference(precision="bf16"): step(forward=second)}
    assert sentence in section(origin, cells)


def test_what_takes_most_of_both_passes():
    # fp32: the product in both. bf16: the product forward; copies, 1 + 9 against 4 + 4 ms, with the backward pass.
    # micro has no inference to compare with. Others than products: 1 of 10 ms in fp32, 1 of 5 ms in bf16.
    fast, slow = {GEMM: 9.0, COPY: 1.0}, {GEMM: 4.0, COPY: 1.0}
    cells = {
        inference(): step(forward=fast),
        training(): step(forward=fast, backward={GEMM: 8.0}),
        inference(precision="bf16"): step(forward=slow),
        training(precision="bf16"): step(forward=slow, backward={GEMM: 4.0, COPY: 9.0}),
        training("micro"): step(forward=fast, backward={GEMM: 8.0}),
    }
    text = section(GPU, cells)
    assert "Forward and backward together have the same one as the forward pass in 1 of 2 cells." in text
    assert "other than matrix multiplies take 10 % of the forward pass's kernel time in fp32 and 20 % of" in text
    assert "memory is likely to set their pace; under autocast the casts, which are copies, come on top." in text


def test_a_training_step_in_one_precision_alone():
    text = section(GPU, {training(): step(forward={GEMM: 9.0, COPY: 1.0})})
    assert "as the forward pass in" not in text
    assert "memory is likely to set their pace." in text
    assert "the share falls" not in text


@pytest.mark.parametrize(
    ("micro", "sentence"),
    [
        # nano: 9 of 10 ms, then 15 of 20; micro: 8 of 10 ms, then 15 of 20, or 19.
        ({}, "take 90 % of inference and 75 % of the training step (1 size); the share falls at 1 of them."),
        (
            {"backward": {GEMM: 7.0, COPY: 3.0}},
            "take 80 % to 90 % of inference and 75 % of the training step (2 sizes); the share falls at 2 of them.",
        ),
        (
            {"backward": {GEMM: 10.0}},
            "take 80 % to 90 % of inference and 75 % to 90 % of the training step (2 sizes); the share falls at 1 of",
        ),
    ],
)
def test_how_the_shares_change_with_training(micro, sentence):
    whole, less = {GEMM: 9.0, COPY: 1.0}, {GEMM: 8.0, COPY: 2.0}
    cells = {inference(): step(forward=whole), training(): step(forward=whole, backward={GEMM: 6.0, COPY: 4.0})}
    if micro:
        cells |= {inference("micro"): step(forward=less), training("micro"): step(forward=less, **micro)}
    text = section(GPU, cells)
    assert sentence in text
    if not micro:
        assert "For nano the category that gains most is copy, from 10 % to 25 %." in text


@pytest.mark.parametrize(
    ("softmax", "sentence", "longer"),
    [
        # Heads of 32 numbers: 5 operations against 128, 0.0391. A quarter of the time: 6.4 times as long for each.
        ([1.0], "the softmax takes 6.4 (nano fp32) times as long per operation", ""),
        ([1.0, 2.0], "takes 6.4 (nano fp32) to 13 (nano bf16) times as long per operation", ""),
        (
            [1.0, 5.0],
            "takes 6.4 (nano fp32) to 32 (nano bf16) times as long per operation",
            "In nano bf16 it even takes longer than both products together (1.25×), with a small part of",
        ),
    ],
)
def test_softmax_beside_the_products_of_attention(softmax, sentence, longer):
    cells = {
        inference(precision=precision): step(forward={GEMM: 9.0, SCORES: 4.0, SOFTMAX: ms})
        for precision, ms in zip(("fp32", "bf16"), softmax, strict=False)
    }
    text = section(GPU, cells)
    assert sentence in text
    assert longer in text
    assert ("it even takes longer" in text) == bool(longer)


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        (
            {GEMM: 6.0},
            "_compiled_, training step, context 512: the step goes from 10.0 ms to 6.00 ms, its kernels from 10.0 ms to"
            " 6.00 ms, 4 launches become 2; copy falls most, from 4.00 ms to 0 ms.",
        ),
        (
            {GEMM: 8.0, COPY: 3.0},
            "_compiled_, training step, context 512 (it shortens no step, and lengthens this one least): the step goes"
            " from 10.0 ms to 11.0 ms, its kernels from 10.0 ms to 11.0 ms, 4 launches become 4; copy falls most, from"
            " 4.00 ms to 3.00 ms.",
        ),
        ({GEMM: 7.0, COPY: 4.0}, "4 launches become 4; the time of no category falls."),
    ],
)
def test_what_compiling_removes(variant, sentence):
    cells = {
        training(): step(forward={GEMM: 6.0, COPY: 4.0}),
        training(compiled=True): step(forward=variant),
    }
    assert sentence in section(GPU, cells)


def test_where_the_profiler_costs_most():
    # 1.2, 1.5 and 2 times as long: the most with our attention.
    metrics = {
        training(): {"step": 10.0, "step_profiled": 12.0},
        training(compiled=True): {"step": 10.0, "step_profiled": 15.0},
        training(attention="flash"): {"step": 10.0, "step_profiled": 20.0},
    }
    text = section(GPU, dict.fromkeys(metrics, PACED), metrics=metrics)
    assert (
        "takes 1.50× as long as without it in the median of 3 cells, 1.20× at least and 2.00× at most (nano, context"
        " 512, fp32, our attention, training step)." in text
    )


@pytest.mark.parametrize(
    ("origin", "waiting", "sentence"),
    [
        # 1.1 times as long where the device works for 9.5 of 10 ms.
        (
            GPU,
            15.0,
            "; in the median 1.50× where the host sets the pace and 1.10× elsewhere, so it is likely the host's",
        ),
        (GPU, 10.0, "; in the median 1.00× where the host sets the pace and 1.10× elsewhere."),
        (CPU, 15.0, ""),
    ],
)
def test_whom_the_profiler_slows(origin, waiting, sentence):
    cells = {training(): PACED, training("micro"): WAITING}
    metrics = {cell: {"step": 10.0, "step_profiled": ms} for cell, ms in zip(cells, (11.0, waiting), strict=True)}
    text = section(origin, cells, metrics=metrics)
    assert sentence in text
    assert ("where the host sets the pace and" in text) == bool(sentence)


@pytest.mark.parametrize(
    ("profiled", "sentence"),
    [
        (15.0, "these passes take 1.50× as long, so unless the kernels take longer, too, the trace shows more idle"),
        (10.0, "these passes take 1.00× as long. "),
    ],
)
def test_forward_passes_that_wait_under_the_profiler(profiled, sentence):
    times, kernels = WAITING["forward"]
    text = section(GPU, {inference(): {"forward": (times | {"stage_profiled": profiled}, kernels)}})
    assert f"there the host's timer measures the host. Under the profiler {sentence}" in text


def test_forward_passes_that_wait_and_were_not_profiled():
    times, kernels = WAITING["forward"]
    unprofiled = {name: ms for name, ms in times.items() if name != "stage_profiled"}
    text = section(GPU, {inference(): {"forward": (unprofiled, kernels)}})
    assert "there the host's timer measures the host." in text
    assert "Under the profiler these passes" not in text
    assert "Not measured on this machine." in section(GPU, {})
