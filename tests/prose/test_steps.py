"""Sentences on training steps: timing, precision, compiling."""

import re

import pandas
import pytest

from cs336_systems.accounting.transformer import parameters, step_flops
from cs336_systems.accounting.units import MIB
from cs336_systems.experiments.accumulation import Accumulation
from cs336_systems.experiments.autocast_dtypes import AutocastDtypes
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.measure.gpus import listed
from cs336_systems.measure.measurement import Measurement
from cs336_systems.measure.record import make_row
from cs336_systems.sizes import parse_size
from scripts.answers import (
    benchmarking_mixed_precision,
    benchmarking_script,
    mixed_precision_accumulation,
    torch_compile,
)
from scripts.views import variability
from scripts.views.data import frame
from scripts.views.steps import step_table
from tests.prose import CPU, GPU, end_to_end, prose, step, table
from tests.samples import OOM

H200_PEAK = listed(GPU.gpu)


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
    assert "_calls for memory_: how often PyTorch's allocator asked" in text
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
    assert "whose medians differ by up to 1.20× (nano:" in text
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


def timed(size, fp32, bf16, **cell):
    """Both precisions of a training step: forward and backward together take as long, ms."""
    return {
        EndToEnd(size=size, precision=name, **cell): step(ms / 2, ms / 2, 4.0, **others)
        for name, (ms, others) in (("fp32", fp32), ("bf16", bf16))
    }


def mixed(cells, origin=GPU):
    return prose(
        "benchmarking_mixed_precision", benchmarking_mixed_precision.answers(end_to_end(origin, cells)), origin
    )


@pytest.mark.parametrize(
    ("gains", "sentence"),
    [
        ([2.0], "forward and backward gain 2.00× at nano, the only size here."),
        ([2.0, 2.5, 3.0], "gain 2.00× at nano and 3.00× at mini, at most 3.00× (mini): the gain grows with the model."),
        ([2.0, 1.9, 3.0], "gain 2.00× at nano and 3.00× at mini, at most 3.00× (mini): the gain grows with the model."),
        ([2.0, 2.1], "gain 2.00× at nano and 2.10× at micro, at most 2.10× (micro): it does not grow steadily with"),
        (
            [2.0, 4.0, 3.0],
            "gain 2.00× at nano and 3.00× at mini, at most 4.00× (micro): it does not grow steadily with",
        ),
        ([3.0, 2.0, 4.0], "gain 3.00× at nano and 4.00× at mini, at most 4.00× (mini): it does not grow steadily with"),
    ],
)
def test_whether_the_gain_grows_with_the_model(gains, sentence):
    cells = {}
    for size, gain in zip(("nano", "micro", "mini"), gains, strict=False):
        cells |= timed(size, (10.0 * gain, {}), (10.0, {}))
    assert sentence in mixed(cells)


@pytest.mark.parametrize(
    ("long", "sentence"),
    [
        # Steps of 10 + 4 ms at 128 tokens; at 512, 4 times as many, of 17 + 4 or 34 + 4.
        (17.0, "nano takes 1.50× as long at context 512 as at 128, with 4 times the tokens."),
        (34.0, ""),
    ],
)
def test_what_a_longer_context_costs_where_the_host_sets_the_pace(long, sentence):
    waiting = {"device_busy": 5.0, "launches": 300.0}
    cells = timed("nano", (10.0, waiting), (10.0, waiting), context=128)
    cells |= timed("nano", (2 * long, waiting), (long, waiting), context=512)
    text = mixed(cells)
    assert "from the shortest to the longest one the gain goes from 1.00× to 2.00× for nano." in text
    assert ("A longer context costs little" in text) == bool(sentence)
    assert sentence in text
    assert "In bf16 2 of 2 cells are host-bound, in fp32 2 of the same cells." in text
    assert "The tensor cores shorten" not in text


def test_a_slower_bf16_that_the_device_paces_and_a_larger_model_with_more_launches():
    # nano: 10 ms in fp32, 12 in bf16, of 16 with the optimizer 15.9; micro: 8 in bf16, with more launches.
    busy = {"device_busy": 15.9, "launches": 300.0, "forward_busy": 5.0, "backward_busy": 5.0}
    more = {"device_busy": 11.9, "launches": 400.0, "forward_busy": 2.0, "backward_busy": 2.0}
    cells = timed("nano", (10.0, busy), (12.0, busy)) | timed("micro", (16.0, busy), (8.0, more))
    text = mixed(cells)
    assert "forward and backward are in 1 of 2 cells (nano at context 512: 0.83×)." in text
    assert "where micro takes 12.0 ms and nano 16.0 ms. It has 4 layers against 2." in text
    assert "In the time that the device works it is 1.00× and 2.50×." in text


def test_a_slower_bf16_on_a_cpu():
    text = mixed(timed("nano", (10.0, {}), (20.0, {})) | timed("micro", (20.0, {}), (10.0, {})), CPU)
    assert "bf16 is the slower one in 1 of 2 cells: nano at context 512 (0.50×)." in text
    assert "bf16 is the slower one" not in mixed(timed("nano", (20.0, {}), (10.0, {})), CPU)


@pytest.mark.parametrize(
    ("micro", "sentence"),
    [
        ([], "gain 2.00× (nano) at context 512, both precisions compiled."),
        ([30.0], "gain 2.00× (nano) to 3.00× (micro) at context 512, both precisions compiled."),
    ],
)
def test_what_bf16_gains_compiled(micro, sentence):
    cells = timed("nano", (10.0, {}), (5.0, {})) | timed("nano", (20.0, {}), (10.0, {}), compiled=True)
    cells |= timed("nano", (90.0, {}), (10.0, {}), compiled=True, context=128)
    for ms in micro:
        cells |= timed("micro", (ms, {}), (10.0, {}), compiled=True)
    assert sentence in mixed(cells)


@pytest.mark.parametrize(
    ("dtype", "sentence"),
    [
        ("float32", "on this device layer normalization is among the operations that autocast runs in fp32."),
        ("float16", "LayerNorm's output is float16 here: autocast for the CPU leaves it in the type of its input"),
    ],
)
def test_the_type_of_a_layer_norm_under_autocast(dtype, sentence):
    tables = end_to_end(CPU, {EndToEnd(size="nano"): step(1.0, 1.0, 1.0)})
    seen = Measurement(metric="norm_output", value=dtype)
    tables["autocast_dtypes"] = frame("autocast_dtypes", [make_row(AutocastDtypes(autocast="fp16"), seen, CPU)])
    assert sentence in prose("benchmarking_mixed_precision", benchmarking_mixed_precision.answers(tables), CPU)


@pytest.mark.parametrize(
    ("cast", "bf16_last", "sentences"),
    [
        (10.002, 0.0, ["changes nothing, not a single bit", "stalls at 4.000: from", "as the zero in the last column"]),
        (10.003, 0.0078125, ["first gives 10.00300.", "is 4.000: at its end an addition still added 0.0078125."]),
    ],
)
def test_sums_of_little_numbers(cast, bf16_last, sentences):
    ways = {
        Accumulation(accumulator="fp32", addend="fp32"): (10.0001, 0.01),
        Accumulation(accumulator="fp16", addend="fp16"): (9.953, 0.0078125),
        Accumulation(accumulator="fp32", addend="fp16"): (10.002, 0.01),
        Accumulation(accumulator="fp32", addend="fp16", cast=True): (cast, 0.01),
        Accumulation(accumulator="bf16", addend="bf16"): (4.0, bf16_last),
    }
    cells = {
        cell: {"sum": total, "relative_error": abs(total / 10 - 1), "rounded_addend": 0.01, "last_step": last}
        for cell, (total, last) in ways.items()
    }
    answers = mixed_precision_accumulation.answers({"accumulation": table("accumulation", CPU, cells)})
    text = prose("mixed_precision_accumulation", answers, CPU)
    assert all(sentence in text for sentence in sentences)
    assert "(the last addition added 0.0078125)" in text
    for cell in cells.values():
        del cell["last_step"]
    answers = mixed_precision_accumulation.answers({"accumulation": table("accumulation", CPU, cells)})
    text = prose("mixed_precision_accumulation", answers, CPU)
    assert "the sum is 4.000. The accumulator's precision" in text
    assert "the last addition added" not in text


def compiled(cells, origin=GPU):
    return prose("torch_compile", torch_compile.answers(end_to_end(origin, cells)), origin)


def test_compiling_where_the_eager_step_waits_for_the_host():
    # nano: 10 against 5 ms, micro 20 against 10; the compiling of 1 and of 4 s is saved after 200 and 400 steps.
    busy = [{"device_busy": ms, "launches": count} for ms, count in ((6.0, 300.0), (4.5, 100.0))]
    cells = {
        EndToEnd(size="nano"): step(4.0, 4.0, 2.0, **busy[0]),
        EndToEnd(size="nano", compiled=True): step(2.0, 2.0, 1.0, warmup=1.025, **busy[1]),
        EndToEnd(size="micro"): step(8.0, 8.0, 4.0, launches=200.0, device_busy=19.0),
        EndToEnd(size="micro", compiled=True): step(4.0, 4.0, 2.0, warmup=4.05, launches=100.0, device_busy=9.9),
    }
    text = compiled(cells)
    assert "The eager step launches 2.00× to 3.00× as many kernels and copies." in text
    assert "host-bound: nano, fp32 (device busy 60 %, compiled 90 %)." in text
    assert "It has paid after 200 training steps (nano, fp32) to 400 (micro, fp32)." in text
    assert "It never pays" not in text
    assert "It is slower" not in text


def test_one_case_that_compiling_slows():
    cells = {
        EndToEnd(size="nano"): step(4.0, 4.0, 2.0),
        EndToEnd(size="nano", compiled=True): step(5.0, 2.0, 1.0),
    }
    assert "It is slower in 1 case (nano, fp32, forward)." in compiled(cells)


TOGETHER = {
    "fp32": EndToEnd(size="nano"),
    "bf16": EndToEnd(size="nano", precision="bf16"),
    "bf16, our attention": EndToEnd(size="nano", precision="bf16", attention="flash"),
    "all": EndToEnd(size="nano", precision="bf16", attention="flash", compiled=True),
}


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        # 20 ms; 12; 8; and in the end 10.
        (
            list(TOGETHER),
            "2.00× as fast as fp32, eager with plain attention, in the end; the fastest is _bf16, our att",
        ),
        (
            ["bf16", "all"],
            "1.20× as fast as bf16, eager with plain attention, in the end; the fastest is _bf16, our att",
        ),
        (["bf16, our attention", "all"], "0.80× as fast as bf16, our attention in the end;"),
        (["all"], ""),
    ],
)
def test_all_improvements_together(measured, sentence):
    times = dict(zip(TOGETHER, (20.0, 12.0, 8.0, 10.0), strict=True))
    text = compiled({TOGETHER[name]: step(times[name] - 2.0, 1.0, 1.0) for name in measured})
    assert sentence in text
    assert ("*All together.*" in text) == bool(sentence)


def steps(cells, origin=GPU):
    return prose("benchmarking_script", benchmarking_script.answers(end_to_end(origin, cells)), origin)


def test_inference_beside_the_forward_pass():
    # 3 of 4 ms at nano, 5 of 4 at micro; mini, whose training step the host paces, does not count.
    cells = {}
    for size, alone, busy in (("nano", 3.0, 9.9), ("micro", 5.0, 9.9), ("mini", 1.0, 2.0)):
        cells[EndToEnd(size=size)] = step(4.0, 4.0, 2.0, device_busy=busy)
        cells[EndToEnd(size=size, mode="inference")] = {"step": [alone] * 10, "device_busy": alone}
        if size == "nano":
            assert "Inference takes 0.75× (nano, context 512, fp32) as long as the training step's" in steps(cells)
    text = steps(cells)
    assert "Inference takes 0.75× (nano, context 512, fp32) to 1.25× (micro, context 512, fp32) as long" in text
    assert "(medians, 2 cells whose pace the device sets)" in text


def test_no_cell_that_the_host_paces():
    text = steps({EndToEnd(size="nano"): step(4.0, 4.0, 2.0, device_busy=9.9)})
    assert "In no cell does the host set the pace." in text


@pytest.mark.parametrize(("waiting", "blamed"), [(WIDE, True), (QUIET, False)])
def test_whether_cells_that_wait_scatter_more(waiting, blamed):
    # Of two training steps the host paces one; the spread of WIDE is 14 %, of QUIET 1 %.
    cells = {
        EndToEnd(size="nano"): {"step": waiting, "device_busy": 5.0},
        EndToEnd(size="micro"): {"step": QUIET, "device_busy": 10.0},
    }
    text = steps(cells)
    assert "The host sets the pace of 1 of 2 cells, among them eager training steps: 1 of 2 in fp32; in" in text
    assert ("what else the host does shows in a step only where the device waits for it" in text) == blamed
    assert "among them" not in steps({EndToEnd(size="nano", mode="inference"): {"step": QUIET, "device_busy": 5.0}})


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        # One of ten takes 1.4 medians.
        ([OUTLIER], "One step is an outlier, and not the first timed one of its cell."),
        ([OUTLIER[::-1]], "One step is an outlier, and the first timed one of its cell."),
        ([OUTLIER, OUTLIER], "2 steps are outliers, none of them the first timed one of its cell."),
        ([OUTLIER, OUTLIER[::-1]], "2 steps are outliers, 1 of them the first timed one of its cell."),
    ],
)
def test_steps_that_stand_out(samples, sentence):
    cells = {EndToEnd(size=size): {"step": own} for size, own in zip(("nano", "micro"), samples, strict=False)}
    assert sentence in steps(cells, CPU)


def test_cells_that_scatter_on_a_cpu():
    text = steps({EndToEnd(size="nano"): {"step": WIDE}}, CPU)
    assert "A guess at the cause: the processor runs other programs too" in text
    assert "A guess at the cause" not in steps({EndToEnd(size="nano"): {"step": QUIET}}, CPU)


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        # 16 bytes for each of 10 billion weights are more than 141 GiB; for nano's 1.4 million they are not.
        ("10B", "GiB, more than the device's 141 GiB."),
        ("nano", "GiB, and what comes on top does not fit into the device's 141 GiB."),
    ],
)
def test_steps_that_do_not_fit(size, sentence):
    tables = end_to_end(GPU, {EndToEnd(size="micro"): step(1.0, 1.0, 1.0)})
    lost = frame("end_to_end", [make_row(EndToEnd(size=size), OOM, GPU)])
    tables["end_to_end"] = pandas.concat([tables["end_to_end"], lost], ignore_index=True)
    text = prose("benchmarking_script", benchmarking_script.answers(tables), GPU)
    assert f"The training step of {size} runs out of memory at context 512 (fp32): it must keep" in text
    assert sentence in text


def test_peaks_beside_the_closed_form():
    # 16 bytes for each weight: twice as much at nano, three times at micro; in bf16 1.5 and 3 times.
    def state(size, times):
        return step(1.0, 1.0, 1.0, peak_memory=times * 16 * parameters(parse_size(size), 10_000) / MIB)

    cells = {EndToEnd(size="nano"): state("nano", 2.0)}
    text = steps(cells)
    assert "in @tab-all is 2.00× (nano, context 512, fp32, training step) that closed form;" in text
    assert "With bf16 autocast" not in text
    cells |= {EndToEnd(size="nano", precision="bf16"): state("nano", 1.5)}
    text = steps(cells)
    assert "With bf16 autocast the peak is 75 % (nano, context 512) of fp32’s" in text
    # A copy of 2 · (4 · 64² + 3 · 64 · 256) + 10 000 · 64 weights of 2 bytes.
    assert "by closed form 0.00144 GiB. The section" in text
    cells |= {
        EndToEnd(size="micro"): state("micro", 3.0),
        EndToEnd(size="micro", precision="bf16"): state("micro", 3.0),
    }
    text = steps(cells)
    assert "is 1.50× (nano, context 512, bf16, training step) to 3.00× (micro, context 512," in text
    assert "With bf16 autocast the peak is 75 % (nano, context 512) to 100 % (micro, context 512) of fp32’s" in text
    assert re.search(r"by closed form 0\.00144 GiB and \S+ GiB in these two\. The section", text)


@pytest.mark.parametrize(
    ("allocations", "sentence"),
    [(0.0, "What it is spent on was not measured apart."), (4.0, "asks the driver for memory 4 times in these steps.")],
)
def test_what_a_cold_step_is_spent_on(allocations, sentence):
    processes = {0: cold(30.0, 10.0, device_allocations=allocations), 2: cold(10.0, 10.0)}
    text = warmed_up(GPU, {"nano": processes})
    assert sentence in text
    assert "_After one or two steps?_ Not measured on this machine." in text


@pytest.mark.parametrize(
    ("warmups", "sentence"),
    [
        ((0, 1, 2), "of the median after one warm-up step already: one is enough here."),
        ((0, 2, 4), "of the median after 2 warm-up steps already: so many are enough here."),
    ],
)
def test_how_many_warm_up_steps_settle_it(warmups, sentence):
    text = warmed_up(CPU, {"nano": {count: cold(10.0, 10.0) for count in warmups}})
    assert sentence in text
    assert "_calls for memory_" not in text


def test_single_calls_for_memory_and_two_steps_that_are_late():
    # After one warm-up step the first takes 12 of 10 ms and 48 of 40, and asks once, or not at all.
    sizes = {
        size: {
            0: cold(3 * ms, ms, device_allocations=1.0),
            1: cold(1.2 * ms, ms, device_allocations=calls),
            2: cold(ms, ms, device_allocations=0.0),
        }
        for size, ms, calls in (("nano", 10.0, 1.0), ("micro", 40.0, 0.0))
    }
    text = warmed_up(GPU, sizes)
    assert "asks the driver for memory 1 time in these steps, and at most 1 time after a warm-up step." in text
    assert "at nano with w = 1 (2.00 ms longer, 1.20× the median, 1 call for memory), micro with w = 1 (8.00 ms" in text
    assert "micro with w = 1 (8.00 ms longer, 1.20× the median, 0 calls for memory)." in text


@pytest.mark.parametrize(("slow", "same_work"), [(9.0, True), (11.0, False)])
def test_processes_that_differ_in_what_the_device_does(slow, same_work):
    processes = {
        0: cold(30.0, 10.0, device_busy=9.0),
        1: cold(10.0, 10.0, device_busy=9.0),
        2: cold(12.0, 12.0, device_busy=slow),
    }
    text = warmed_up(GPU, {"nano": processes})
    assert "differ by up to 1.20× (nano: 10.0 ms with w = 0, 12.0 ms with w = 2)" in text
    assert ("though the device works equally long in all of them" in text) == same_work


@pytest.mark.parametrize(
    ("forward", "backward", "phases"),
    [
        (4.0, 6.0, " (4.00 ms in the forward pass, 6.00 ms in the backward pass)."),
        (4.0, 0.0, " (4.00 ms in the forward pass)."),
        (0.0, 0.0, ". "),
    ],
)
def test_the_phases_that_a_cold_start_lengthens(forward, backward, phases):
    # The first step takes 10 ms longer than the others, of which each phase has its part.
    first = {"forward": [5.0 + forward, *[5.0] * 9], "backward": [5.0 + backward, *[5.0] * 9]}
    processes = {0: cold(20.0, 10.0) | first, 1: cold(10.0, 10.0), 2: cold(10.0, 10.0)}
    assert f"takes 10.0 ms longer than the others{phases}" in warmed_up(GPU, {"nano": processes})


def test_nothing_was_measured():
    text = steps({}, CPU)
    assert "Nothing was measured on this machine." in text
    assert "steps are timed after" not in text


@pytest.mark.parametrize(("sizes", "sentence"), [(1, "(Of 1 cell no single steps"), (2, "(Of 2 cells no single steps")])
def test_cells_whose_single_steps_were_not_kept(sizes, sentence):
    cells = {EndToEnd(size=size, mode="inference"): {"step": WIDE} for size in ("nano", "micro")[:sizes]}
    tables = end_to_end(CPU, cells)
    tables["end_to_end"]["samples"] = ""
    text = prose("benchmarking_script", benchmarking_script.answers(tables), CPU)
    assert f"{sentence} were kept, so none is left out as an outlier there.)" in text
    assert "no single steps were kept" not in steps(cells, CPU)


@pytest.mark.parametrize(
    ("cells", "sentences"),
    [
        (8, ["and @tab-wide the cells that scatter.", "[The cells whose standard deviation exceeds 5.0 % of the mean"]),
        (9, ["and @tab-wide the cells that scatter most.", "[The 8 cells that scatter most, of 9 above 5.0 %"]),
    ],
)
def test_the_cells_that_scatter_are_listed(cells, sentences):
    text = steps({EndToEnd(size="nano", context=64 * place): {"step": WIDE} for place in range(1, cells + 1)}, CPU)
    for sentence in sentences:
        assert sentence in text


def test_training_steps_that_the_host_paces_in_both_precisions():
    waiting, busy = {"step": QUIET, "device_busy": 5.0}, {"step": QUIET, "device_busy": 10.0}
    cells = {
        EndToEnd(size="nano"): waiting,
        EndToEnd(size="micro"): busy,
        EndToEnd(size="nano", precision="bf16"): waiting,
    }
    text = steps(cells)
    assert "pace of 2 of 3 cells, among them eager training steps: 1 of 1 in bf16 and 1 of 2 in fp32; in" in text


def test_inference_on_a_cpu():
    cells = {EndToEnd(size="nano"): step(4.0, 4.0, 2.0), EndToEnd(size="nano", mode="inference"): {"step": [3.0] * 10}}
    assert "the loss and the graph too (medians, 1 cell)." in steps(cells, CPU)
    assert "whose pace the device sets" not in steps(cells, CPU)


def test_one_size_and_what_the_device_gains():
    busy = [{"forward_busy": ms, "backward_busy": ms} for ms in (8.0, 4.0)]
    text = mixed(timed("nano", (20.0, busy[0]), (10.0, busy[1])))
    assert "2.00× at nano, the only size here. In the time that the device works it is 2.00×." in text


def test_two_sizes_at_two_contexts():
    cells = timed("nano", (10.0, {}), (10.0, {}), context=128) | timed("nano", (20.0, {}), (10.0, {}))
    cells |= timed("micro", (10.0, {}), (5.0, {}), context=128) | timed("micro", (30.0, {}), (10.0, {}))
    text = mixed(cells)
    assert "the gain goes from 1.00× to 2.00× for nano and from 2.00× to 3.00× for micro." in text


def test_two_models_that_are_slower_than_larger_ones():
    # In bf16 nano takes 16 ms, micro 12, mini 10, in steps of which the device works for 5.
    busy = {"device_busy": 5.0, "launches": 300.0}
    cells = {}
    for size, ms in (("nano", 12.0), ("micro", 8.0), ("mini", 6.0)):
        cells |= timed(size, (10.0, busy), (ms, busy))
    text = mixed(cells)
    assert "as in 3 pairs of the table: most of all at context 512, where mini takes 10.0 ms and nano 16.0 ms." in text


@pytest.mark.parametrize(
    ("origin", "sentence"),
    [
        (GPU, "are in 2 of 2 cells (nano at context 512: 0.50×, micro at context 512: 0.80×), all of them host-bound"),
        (CPU, "the slower one in 2 of 2 cells: nano at context 512 (0.50×), micro at context 512 (0.80×)."),
    ],
)
def test_two_cells_in_which_bf16_is_slower(origin, sentence):
    busy = {"device_busy": 5.0, "launches": 300.0} if origin.gpu else {}
    assert sentence in mixed(
        timed("nano", (10.0, busy), (20.0, busy)) | timed("micro", (16.0, busy), (20.0, busy)), origin
    )


def test_a_compiled_step_that_failed():
    tables = end_to_end(GPU, {EndToEnd(size="nano"): step(4.0, 4.0, 2.0)})
    lost = frame("end_to_end", [make_row(EndToEnd(size="nano", compiled=True), OOM, GPU)])
    tables["end_to_end"] = pandas.concat([tables["end_to_end"], lost], ignore_index=True)
    text = prose("torch_compile", torch_compile.answers(tables), GPU)
    assert "@tab-compile compares the training step's phases" in text
    assert "The gain is largest for" not in text
    cells = {EndToEnd(size="nano"): step(4.0, 4.0, 2.0), EndToEnd(size="nano", compiled=True): step(2.0, 2.0, 1.0)}
    assert "@tab-compile and @fig-compile_speedup compare the training step's phases" in compiled(cells)


def test_two_eager_steps_that_wait_and_compiling_that_never_pays():
    # 10 ms both eager and compiled, of which the device works for 6 and 4.5.
    cells = {}
    for size in ("nano", "micro"):
        cells[EndToEnd(size=size)] = step(4.0, 4.0, 2.0, device_busy=6.0)
        cells[EndToEnd(size=size, compiled=True)] = step(4.0, 4.0, 2.0, warmup=1.05, device_busy=4.5)
    text = compiled(cells)
    assert "host-bound: nano, fp32 (device busy 60 %, compiled 45 %), micro, fp32 (device busy 60 %, compiled" in text
    assert "It never pays for nano, fp32 and micro, fp32, whose compiled step is no faster." in text
    assert "It has paid after" not in text


def test_sums_that_were_not_measured():
    answers = mixed_precision_accumulation.answers({"accumulation": frame("accumulation", [])})
    assert "Nothing was measured on this machine." in prose("mixed_precision_accumulation", answers, CPU)


def test_the_times_of_a_size_that_was_tried_elsewhere():
    cells = {EndToEnd(size="nano"): step(1.0, 1.0, 1.0), EndToEnd(size="micro", context=128): step(1.0, 1.0, 1.0)}
    text = steps(cells)
    assert "@tab-times has the times at context 512 (micro, not tried there, at another), @fig-step_phases" in text
    cells[EndToEnd(size="micro")] = step(1.0, 1.0, 1.0)
    assert "@tab-times has the times at context 512, @fig-step_phases" in steps(cells)


@pytest.mark.parametrize(("origin", "busy"), [(GPU, {"device_busy": 3.0}), (GPU, {}), (CPU, {})])
def test_what_stands_beside_the_times(origin, busy):
    text = steps({EndToEnd(size="nano"): step(1.0, 1.0, 1.0, **busy)}, origin)
    assert ("_busy_: the device's share of that step." in text) == bool(busy)
    assert ("share of the step, with a star where the host sets the pace." in text) == bool(busy)
    assert ("each of its phases, and its peak memory, in all eager cells" in text) == bool(origin.gpu)
    assert ("mostly in rehearsals, profiles and releasing memory" in text) == bool(origin.gpu)
    assert ("MFU is that step's, at its median." in text) == bool(origin.gpu)


def test_the_best_utilization_in_each_precision():
    # Steps that reach 30 and 50 % of 67 TFLOP/s in fp32, and 40 % of 989 in bf16.
    def reached(size, precision, share):
        cell = EndToEnd(size=size, mode="inference", precision=precision)
        flops = step_flops("inference", parse_size(size), cell.vocab_size, cell.batch_size, cell.context)
        return {cell: {"step": [1e3 * flops / share / H200_PEAK.flops(precision)] * 10}}

    fp32 = reached("nano", "fp32", 0.3) | reached("micro", "fp32", 0.5)
    text = steps(fp32)
    best = "attention, eager and compiled, is 50 % of the CUDA cores' fp32 peak (micro, context 512, fp32, inference)"
    assert f"The best utilization of all steps with plain {best}. " in text
    bf16 = "and in bf16 40 % of the tensor cores' dense bf16 peak (nano, context 512, bf16, inference)."
    assert f"{best}, {bf16}" in steps(fp32 | reached("nano", "bf16", 0.4))
    assert "The best utilization" not in steps(fp32, CPU)
