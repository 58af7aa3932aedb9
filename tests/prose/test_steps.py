"""Sentences on training steps: timing, precision, compiling."""

import re

import pytest

from cs336_systems.experiments.end_to_end import EndToEnd
from scripts.answers import benchmarking_mixed_precision, benchmarking_script, torch_compile
from scripts.answers.helpers import variability
from scripts.steps import step_table
from tests.prose import CPU, GPU, end_to_end, prose, step


def test_what_compiling_gains_costs_and_when_it_pays():
    # nano: 2 + 4 + 4 = 10 ms eager, 4 + 6 + 2 = 12 ms compiled: ratios 0.5, 0.6, 0.83.
    # micro: 8 + 8 + 4 = 20 ms eager, 2 + 4 + 4 = 10 ms compiled: ratios 4, 2.67, 2. Its warm-up of 5 steps takes
    # 4.05 s, of which 5 x 10 ms are steps: 4 s of compiling, saved at 10 ms a step after 400 steps.
    cells = {
        EndToEnd(size="nano"): step(2.0, 4.0, 4.0),
        EndToEnd(size="nano", compiled=True): step(4.0, 6.0, 2.0, warmup=1.06),
        EndToEnd(size="micro"): step(8.0, 8.0, 4.0),
        EndToEnd(size="micro", compiled=True): step(2.0, 4.0, 4.0, warmup=4.05),
    }
    text = prose("torch_compile", torch_compile.answers(end_to_end(CPU, cells)), CPU)
    assert "The gain is largest for micro, fp32, forward (4.00×) and smallest for nano, fp32, forward (0.50×)." in text
    assert "It is slower in 3 cases (nano, fp32, forward among them)." in text
    assert "Compiling costs up to 4.00 s (micro, fp32)." in text
    assert "It has paid after 400 training steps (micro, fp32)." in text
    assert "It never pays for nano, fp32, whose compiled step is no faster." in text
    assert "host-bound" not in text


def test_eager_steps_that_the_device_paces():
    cells = {
        EndToEnd(size="nano"): step(2.0, 4.0, 4.0, device_busy=9.5, launches=300.0),
        EndToEnd(size="nano", compiled=True): step(1.0, 2.0, 4.0, device_busy=6.9, launches=100.0, warmup=0.035),
    }
    text = prose("torch_compile", torch_compile.answers(end_to_end(GPU, cells)), GPU)
    assert "No eager step among them is host-bound." in text
    assert "The eager step launches 3.00× as many kernels and copies." in text
    assert "It has paid after 0 training steps (nano, fp32)." in text


def test_bf16_that_is_slower_where_the_host_sets_the_pace():
    # nano: forward and backward 6 ms in fp32, 8 ms in bf16: 0.75, the device works 2 of 12 ms in bf16.
    # micro: 16 against 4: 4.00, and its bf16 step, 8 ms, is shorter than nano's.
    cells = {
        EndToEnd(size="nano"): step(2.0, 4.0, 4.0, device_busy=9.9, launches=300.0),
        EndToEnd(size="nano", precision="bf16"): step(4.0, 4.0, 4.0, device_busy=2.0, launches=500.0),
        EndToEnd(size="micro"): step(8.0, 8.0, 4.0, device_busy=19.9, launches=300.0),
        EndToEnd(size="micro", precision="bf16"): step(2.0, 2.0, 4.0, device_busy=7.9, launches=400.0),
    }
    text = prose("benchmarking_mixed_precision", benchmarking_mixed_precision.answers(end_to_end(GPU, cells)), GPU)
    assert "gain 0.75× at nano and 4.00× at micro, at most 4.00× (micro): the gain grows with the model." in text
    assert "In bf16 1 of 2 cells are host-bound, in fp32 0 of the same cells." in text
    assert "forward and backward are in 1 of 2 cells (nano at context 512: 0.75×), all of them host-bound" in text
    assert "as in 1 pair of the table: most of all at context 512, where micro takes 8.00 ms" in text


def test_a_gain_that_does_not_grow_and_an_unknown_pace():
    cells = {
        EndToEnd(size="nano"): step(2.0, 2.0, 4.0),
        EndToEnd(size="nano", precision="bf16"): step(1.0, 1.0, 4.0),
        EndToEnd(size="micro"): step(9.0, 9.0, 4.0),
        EndToEnd(size="micro", precision="bf16"): step(5.0, 5.0, 4.0),
    }
    text = prose("benchmarking_mixed_precision", benchmarking_mixed_precision.answers(end_to_end(GPU, cells)), GPU)
    assert "at most 2.00× (nano): it does not grow steadily with the model." in text
    assert "For how long the device worked was not measured here" in text


QUIET, OUTLIER, WIDE = [10.0, 10.2] * 5, [10.0] * 9 + [14.0], [8.0, 10.0, 11.8, 10.0, 9.0] * 2


@pytest.mark.parametrize(
    ("samples", "verdict", "sentence"),
    [
        ([QUIET, QUIET], "small", ""),
        (
            [QUIET, OUTLIER],
            "outliers",
            "in 1 of 2 cells, and in none of them without the steps that take more than 1.20×",
        ),
        ([QUIET, QUIET, WIDE], "mostly", "It is small in most cells, not in all: "),
        ([WIDE, WIDE, QUIET], "large", "It is not small: "),
    ],
)
def test_how_far_steps_scatter(samples, verdict, sentence):
    # The spread of QUIET is 1 % of its mean; of OUTLIER 12 %, and nothing without the last step, which takes 1.4
    # medians; of WIDE 14 %, with no step above 1.18 medians.
    sizes = ["nano", "micro", "mini"]
    cells = {EndToEnd(size=size, mode="inference"): {"step": own} for size, own in zip(sizes, samples, strict=False)}
    tables = end_to_end(CPU, cells)
    assert variability.spread(step_table(tables["end_to_end"]))["verdict"] == verdict
    assert sentence in prose("benchmarking_script", benchmarking_script.answers(tables), CPU)


def cold(first, others, **metrics):
    """The metrics of ten steps of a process that starts cold, ms: the first, and nine that take equally long."""
    samples = [first] + [others] * 9
    return {"step": samples, "forward": samples, "first_step": first} | metrics


def warmed_up(origin, sizes):
    """The section's prose: sizes with the metrics of a process for each number of warm-up steps."""
    warm = {EndToEnd(size="nano", mode="inference"): {"step": [10.0] * 10}}
    cells = warm | {
        EndToEnd(size=size, mode="forward_backward", cold_start=True, warmup=warmup): metrics
        for size, processes in sizes.items()
        for warmup, metrics in processes.items()
    }
    return prose("benchmarking_script", benchmarking_script.answers(end_to_end(origin, cells)), origin)


def test_a_start_that_costs_the_same_at_every_size_and_one_step_settles():
    # Extra 20 and 24 ms: the larger is below 1.5 times the smaller. Steps 10 and 40 ms: more than 3 times apart. Means
    # 12 / 10 = 1.20 and 42.4 / 40 = 1.06.
    sizes = {
        "nano": {
            0: cold(30.0, 10.0, device_allocations=5.0),
            1: cold(10.0, 10.0, device_allocations=0.0),
            2: cold(10.0, 10.0, device_allocations=0.0),
        },
        "micro": {
            0: cold(64.0, 40.0, device_allocations=7.0),
            1: cold(40.0, 40.0, device_allocations=0.0),
            2: cold(40.0, 40.0, device_allocations=0.0),
        },
    }
    text = warmed_up(GPU, sizes)
    assert re.search(r"the mean of the timed steps is 1\.06\S* to 1\.20× their median, because the first one", text)
    assert "That is nearly the same at every size, while the step itself goes from" in text
    assert "asks the driver for memory 5 to 7 times in these steps, and not once after a warm-up step." in text
    assert "after one warm-up step already: one is enough here." in text
    assert "are different processes" not in text


def test_a_second_step_that_still_allocates_and_processes_that_differ():
    # Extra 20 and 60 ms. After one warm-up step nano's first step takes 12 ms, 1.20 medians, with 3 allocations. Its
    # process after two steps is 1.20 times as slow as the others; the device works for 9 ms in all.
    busy = {"device_busy": 9.0}
    sizes = {
        "nano": {
            0: cold(30.0, 10.0, device_allocations=5.0, **busy),
            1: cold(12.0, 10.0, device_allocations=3.0, **busy),
            2: cold(12.0, 12.0, device_allocations=0.0, **busy),
        },
        "micro": {0: cold(100.0, 40.0, device_allocations=5.0), 2: cold(40.0, 40.0, device_allocations=0.0)},
    }
    text = warmed_up(GPU, sizes)
    assert "nearly the same at every size" not in text
    assert "The step itself goes from" in text
    assert "times 5" not in text
    assert "asks the driver for memory 5 times in these steps, and at most 3 times after a warm-up step." in text
    assert re.search(r"at nano with w = 1 \(\S+ ms longer, 1\.20× the median, 3 calls for memory\)\.", text)
    assert "A step that runs for the second time still finds something new" in text
    assert "whose medians differ by up to 1.20× without regard to warm-up (nano:" in text
    assert "though the device works equally long in all of them" in text


@pytest.mark.parametrize(
    ("origin", "counted", "cause", "why"),
    [
        (GPU, {"device_allocations": 0.0}, "CUDA loads the module", "It is not the allocator"),
        (GPU, {}, "CUDA loads the module", "The cause is not in these measurements"),
        (CPU, {}, "the thread pool starts", "The cause is not in these measurements"),
    ],
)
def test_a_first_step_that_hardly_stands_out_and_a_second_that_does(origin, counted, cause, why):
    # The mean without warm-up is 10.1 / 10 = 1.01 medians, and after one step the first takes 1.20.
    processes = {0: cold(11.0, 10.0, **counted), 1: cold(12.0, 10.0, **counted), 2: cold(10.0, 10.0, **counted)}
    text = warmed_up(origin, {"nano": processes})
    assert "where it is not larger, the other steps scatter as much" in text
    assert "The first timed step is still different" in text
    assert cause in text
    assert why in text
