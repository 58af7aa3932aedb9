"""Sentences on attention: plain, compiled, and our kernels beside the libraries."""

import pandas
import pytest

from cs336_systems.experiments.attention import Attention
from cs336_systems.experiments.end_to_end import EndToEnd
from cs336_systems.experiments.flash import Flash
from cs336_systems.experiments.flash_ablation import FlashAblation
from cs336_systems.measure.record import make_row
from scripts.answers import flash_backward, flash_benchmarking, flash_forward, pytorch_attention, torch_compile
from scripts.views.data import frame
from tests.prose import CPU, GPU, contest, filled, prose, table
from tests.prose import step as step_of
from tests.samples import H200, NEEDS_GPU, OOM, provenance


def attention(sequence, compiled, forward, backward, **others):
    """A cell of plain attention at d 16, batch 8, and its metrics: passes that always take equally long."""
    cell = Attention(sequence=sequence, d=16, compiled=compiled)
    return cell, {"forward": [forward] * cell.steps, "backward": [backward] * cell.steps, **others}


def test_what_plain_attention_holds_between_its_passes_and_at_the_peak():
    # Batch 8: a tensor of vectors takes 0.5 MiB at 1024 tokens, 1 MiB at 2048; scores take 32 and 128 MiB. Between the
    # passes five and one of them, 34.5 and 133 MiB, and 10 MiB that libraries keep. At the peak six and four, and 10.
    cells = [
        attention(1024, False, 1.0, 2.0, memory_before_backward=44.5, peak_memory=141.0),
        attention(2048, False, 4.0, 8.0, memory_before_backward=143.0, peak_memory=528.0),
    ]
    text = prose(
        "pytorch_attention", pytorch_attention.answers({"attention": table("attention", GPU, dict(cells))}), GPU
    )
    assert "143 MiB were measured; at least 10.0 MiB of the difference" in text
    assert "autograd's: 5.00 MiB each" in text
    assert "is that of four score-sized tensors of 128 MiB, six small ones" in text
    # log2(143 / 44.5) = 1.684, log2(133 / 34.5) = 1.947.
    assert "to the power 1.68 over the last doubling, the constant counted, and to the power 1.947 without it." in text


BUSY, IDLE = {"device_busy": 0.9}, {"device_busy": 0.4}


@pytest.mark.parametrize(
    ("eager", "compiled", "sentence"),
    [
        ({}, {}, "From 256 to 1024 tokens the compiled passes take 1.20× as long for 16 times the work"),
        (BUSY, IDLE, "the host sets the pace of all of them"),
    ],
)
def test_where_and_why_compiling_attention_loses(eager, compiled, sentence):
    # Both passes: 1.0 against 2.0 ms at 256 tokens, 1.0 against 2.4 at 1024, 8 against 4 at 4096.
    cells = [
        attention(256, False, 0.5, 0.5, **eager),
        attention(256, True, 1.0, 1.0, **compiled),
        attention(1024, False, 0.5, 0.5, **eager),
        attention(1024, True, 1.2, 1.2, **compiled),
        attention(4096, False, 4.0, 4.0, peak_memory=2120.0),
        attention(4096, True, 2.0, 2.0, peak_memory=1060.0),
    ]
    answers = torch_compile.answers(
        {"attention": table("attention", GPU, dict(cells)), "end_to_end": frame("end_to_end", [])}
    )
    text = prose("torch_compile", answers, GPU)
    assert "Compiling loses in 2 of 3 cells, at up to 1024 tokens; from 4096 up it gains in every one." in text
    assert "falls from 2120 MiB to 1060 MiB, 0.50×" in text
    assert sentence in text


def plain(cells, origin=GPU):
    return prose(
        "pytorch_attention", pytorch_attention.answers({"attention": table("attention", origin, cells)}), origin
    )


def test_a_peak_that_is_not_the_closed_forms():
    # At 2048 tokens scores take 128 MiB; four of them and six of 1 MiB are 518, with the 10 MiB of libraries 528.
    cells = [attention(2048, False, 4.0, 8.0, memory_before_backward=143.0, peak_memory=640.0)]
    text = plain(dict(cells))
    assert "is 5.0 times the size of the scores, where a closed form of four score-sized tensors and six small" in text
    assert "gives 528 MiB." in text
    assert "Memory saved for the backward pass grows with the square of the sequence." in text
    assert (
        "Nothing runs out of memory here, so the account below is for the largest configuration, sequence 2048" in text
    )


def test_memory_that_does_not_exceed_the_closed_form():
    # 133 MiB by the closed form, and nothing beside it.
    text = plain(dict([attention(2048, False, 4.0, 8.0, memory_before_backward=133.0)]))
    assert "by the closed form; 133 MiB were measured. Memory saved" in text


def test_where_plain_attention_runs_out_of_memory():
    measured = table("attention", GPU, dict([attention(1024, False, 1.0, 2.0, memory_before_backward=44.5)]))
    lost = [make_row(Attention(sequence=n, d=16), OOM, GPU) for n in (4096, 2048)]
    both = pandas.concat([measured, frame("attention", lost)], ignore_index=True)
    text = prose("pytorch_attention", pytorch_attention.answers({"attention": both}), GPU)
    assert "It runs out of memory first at sequence 2048, d = 16." in text
    assert "Together 133 MiB by the closed form; not measured here." in text


def side_by_side(pairs, **others):
    """Text on attention of 256, 1024 and 4096 tokens whose two passes take as long eager and compiled, ms."""
    cells = []
    for sequence, times in zip((256, 1024, 4096), pairs, strict=True):
        for compiled, whole in zip((False, True), times, strict=True):
            cells.append(attention(sequence, compiled, whole / 2, whole / 2, **others.get(f"compiled_{compiled}", {})))
    tables = {"attention": table("attention", GPU, dict(cells)), "end_to_end": frame("end_to_end", [])}
    return prose("torch_compile", torch_compile.answers(tables), GPU)


def test_compiling_attention_that_always_gains():
    text = side_by_side([(2.0, 1.0), (6.0, 2.0), (16.0, 4.0)])
    assert "most, 4.00×, at 4096 tokens and d = 16, and least, 2.00×, at 256 and d = 16." in text
    assert "It loses in none of 3 cells." in text


def test_compiling_attention_that_loses_at_the_longest():
    # The compiled time grows 16 times over lengths of 16 times the work: no sign of the host.
    text = side_by_side([(1.0, 2.0), (16.0, 32.0), (300.0, 301.0)])
    assert "Compiling loses in 3 of 3 cells, at up to 4096 tokens." in text
    assert "it gains in every one" not in text
    assert "For how long the device works in them was not measured." in text
    assert "guards and a wrapper" not in text


def test_a_loss_that_the_host_explains_in_part():
    # At 256 tokens the device works for 0.9 of 2 ms compiled, at 1024 for 0.9 of 0.95.
    pairs = [(0.95, 2.0), (0.92, 0.95), (8.0, 4.0)]
    text = side_by_side(pairs, compiled_False={"device_busy": 0.9}, compiled_True={"device_busy": 0.9})
    assert "the host sets the pace of 1 of 2." in text


@pytest.mark.parametrize(
    ("compiled", "sentence"),
    [
        (1060.0, "the peak falls from 2120 MiB to 1060 MiB, 0.50×"),
        (2120.0, "the peak does not fall: it goes from 2120"),
    ],
)
def test_the_peak_of_compiled_attention(compiled, sentence):
    peaks = {"compiled_False": {"peak_memory": 2120.0}, "compiled_True": {"peak_memory": compiled}}
    assert sentence in side_by_side([(2.0, 1.0)] * 3, **peaks)


def flash_tables(cells, ablation=None, steps=None, origin=GPU):
    """Tables of the sections on FlashAttention."""
    return {
        "flash": table("flash", origin, cells),
        "flash_ablation": table("flash_ablation", origin, ablation or {}),
        "end_to_end": table("end_to_end", origin, steps or {}),
    }


def passes(forward, backward, **others):
    """The metrics of a call, ten equal samples each."""
    both = {"forward": forward, "backward": backward, "forward_backward": forward + backward}
    return {name: [value] * 10 for name, value in both.items()} | others


BOARD = {"sequence": 16384, "heads": 16, "compiled_call": True}


def test_the_leaderboard_is_held_against_the_fastest_library_and_the_ablation():
    # Ours 2 + 4 = 6 ms; the libraries 9 and 4.5, of which ours is 0.75 times as fast. In the ablation backward takes
    # 4.4 ms, 1.10 of the 4 here; with a sum's gradients 4.0, so 1.10 is due to the values.
    cells = {
        Flash(**BOARD, implementation="triton"): passes(2.0, 4.0, handout=[6.6] * 10, handout_power=[690.0]),
        Flash(**BOARD, implementation="sdpa_flash"): passes(3.0, 6.0),
        Flash(**BOARD, implementation="sdpa_cudnn"): passes(1.5, 3.0),
    }
    ablation = {FlashAblation(): {"forward": [2.0] * 10, "backward": [4.4] * 10, "backward_of_sum": [4.0] * 10}}
    answers = flash_benchmarking.answers(flash_tables(cells, ablation))
    text = prose("flash_benchmarking", answers, GPU)
    assert "At d = 64 the fastest library measured is SDPA cuDNN: ours is 0.75× as fast." in text
    assert "by it ours takes 6.60 ms at d = 64, and the implementations draw 690 W meanwhile" in text
    assert "4.40 ms in the ablation below, 1.10×." in text
    assert (
        "it takes 4.00 ms there, 1.00× as long as here, and with the random ones 1.10× as long as with those." in text
    )
    tile, *_ = flash_benchmarking.tiles(answers)
    assert "0.75× as fast as SDPA cuDNN, the fastest library measured" in tile.meaning


@pytest.mark.parametrize(("kernel", "for_hopper"), [("forward_kernel", False), ("attention_forward_kernel", True)])
def test_which_of_our_kernels_ran_is_told_by_their_names(kernel, for_hopper):
    one, many = {"sequence": 1024}, {"sequence": 1024, "heads": 32, "batch_size": 2}
    ours, other = {"implementation": "triton"}, {"implementation": "sdpa_flash"}
    shapes = [BOARD, many, one]
    tables = flash_tables(
        {Flash(**shape, **whose): passes(2.0, 4.0) for shape in shapes for whose in (ours, other)},
        {FlashAblation(): {"forward": [2.0] * 10, "backward": [4.4] * 10}},
    )
    names = {"kernels": f"{kernel}, backward_kernel"}, {"kernels": "forward_kernel"}
    launched = {Flash(**shape, **ours): [(names[shape is one], {"launches": 3})] for shape in shapes}
    tables["flash"] = pandas.concat([tables["flash"], contest("flash", GPU, launched)], ignore_index=True)
    text = prose("flash_benchmarking", flash_benchmarking.answers(tables), GPU)
    assert ("The ablation is of the Triton kernels; here those for Hopper ran." in text) == for_hopper
    assert f"Kernels of ours at d = 64: {', '.join(sorted([kernel, 'backward_kernel']))}." in text
    assert ("ran in 1 of 1 bf16 cells with many heads, those in Triton in the others." in text) == for_hopper


def test_versions_of_a_library_are_told_if_they_differ():
    theirs = {"implementation": "flash_attention_4", "sequence": 1024}
    one = flash_tables({Flash(**theirs): passes(2.0, 4.0)})
    many = table("flash", GPU, {Flash(**theirs, heads=8): passes(2.0, 4.0)})
    for version in ("4.0", "4.1"):
        tables = one | {
            "flash": pandas.concat([one["flash"].assign(flash_attn="4.0"), many.assign(flash_attn=version)])
        }
        text = prose("flash_benchmarking", flash_benchmarking.answers(tables), GPU)
        told = "Versions of FlashAttention-4: 4.0 (one head) and 4.1 (many heads)."
        assert (told in text) == (version == "4.1")


def test_many_heads_tell_a_want_of_tiles_from_slow_kernels():
    # With one head ours takes 2 ms, cuDNN 1; with 64, 20 against 30.
    one, many = {"sequence": 8192}, {"sequence": 8192, "heads": 32, "batch_size": 2}
    cells = {
        Flash(**one, implementation="triton"): passes(1.0, 1.0),
        Flash(**one, implementation="sdpa_cudnn"): passes(0.6, 0.4),
        Flash(**many, implementation="triton"): passes(5.0, 15.0),
        Flash(**many, implementation="sdpa_cudnn"): passes(10.0, 20.0),
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert "On the device ours is slower than SDPA cuDNN in bf16 in 1 of 1 cells (8192 tokens)" in text
    assert "its forward pass takes 0.60× of ours and its backward pass 0.40×." in text
    assert "0.50× with one head and 1.50× with as many as below: where ours loses, it is for want of tiles." in text


@pytest.mark.parametrize(
    ("one", "many", "verdict"),
    [
        # Ours takes 2 ms with one head, 20 with 64; the device sets the pace of replayed graphs.
        ([1.6, 1.8], [18.0, 26.0], "1.30× with as many as below: what many heads still lose is not for want of tiles."),
        ([1.6, 2.2], [22.0, 26.0], "0.80× to 1.10× with one head and 1.10× to 1.30× with as many as below: where ours"),
        ([2.2, 2.4], [22.0, 26.0], "1.10× to 1.20× with one head and 1.10× to 1.30× with as many as below."),
    ],
)
def test_what_few_tiles_explain(one, many, verdict):
    heads = {"heads": 32, "batch_size": 2}
    cells = {}
    for sequence, alone, together in zip((1024, 2048), one, many, strict=True):
        cells |= {
            Flash(sequence=sequence, implementation="triton"): passes(1.5, 1.5, graph=[2.0] * 10),
            Flash(sequence=sequence, implementation="sdpa_cudnn"): passes(1.5, 1.5, graph=[alone] * 10),
            Flash(sequence=sequence, **heads, implementation="triton"): passes(5.0, 15.0),
            Flash(sequence=sequence, **heads, implementation="sdpa_cudnn"): passes(0.4 * together, 0.6 * together),
        }
    # A loss at a length that was not measured with many heads.
    cells |= {
        Flash(sequence=4096, implementation="triton"): passes(2.0, 2.0, graph=[3.0] * 10),
        Flash(sequence=4096, implementation="sdpa_cudnn"): passes(2.0, 2.0, graph=[1.5] * 10),
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert verdict in text
    lost = [sequence for sequence, ms in zip((1024, 2048), one, strict=True) if ms < 2] + [4096]
    lengths = "4096" if len(lost) == 1 else f"{lost[0]} to 4096"
    assert f"ours is slower than SDPA cuDNN in bf16 in {len(lost)} of 3 cells ({lengths} tokens)." in text


def test_lengths_up_to_which_ours_waits_for_the_host():
    # d 64: 0.05 ms of device in calls of 0.2, 0.1 in 0.105; d 128: 0.1 in 0.105 and 0.3 in 0.32. Ours costs the host
    # 2 and 0.5 times what SDPA does.
    cells = {
        Flash(implementation="triton"): passes(0.1, 0.1, graph=[0.05] * 10, host=[200.0] * 10),
        Flash(implementation="sdpa_flash"): passes(0.05, 0.055, graph=[0.1] * 10, host=[100.0] * 10),
        Flash(d=128, implementation="triton"): passes(0.05, 0.055, graph=[0.1] * 10, host=[50.0] * 10),
        Flash(d=128, implementation="sdpa_flash"): passes(0.1, 0.22, graph=[0.3] * 10, host=[100.0] * 10),
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert "on the device ours is 2.00× to 3.00× as fast as SDPA's flash backend, but calling a Python function" in text
    assert "costs the host up to 2.00× what" in text
    assert (
        "Called one by one, ours waits for the host in 1 of 2 cells, SDPA flash in 0 of 2 cells;"
        " captured in a CUDA graph, the device sets the pace." in text
    )


def test_calls_of_ours_that_cost_the_host_less():
    cells = {
        Flash(implementation="triton"): passes(0.1, 0.1, graph=[0.05] * 10, host=[50.0] * 10),
        Flash(implementation="sdpa_flash"): passes(0.1, 0.1, graph=[0.1] * 10, host=[100.0] * 10),
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert "SDPA's flash backend, and calling a Python function" in text
    assert "costs the host no more than 0.50× what" in text


@pytest.mark.parametrize(("disturbed", "sentence"), [(0, ""), (1, "One number is"), (2, "Some numbers are")])
def test_numbers_that_something_else_disturbed(disturbed, sentence):
    # 0.1 + 0.1 ms by themselves, and 0.02 ms of the host in a call of both; in one call 0.5 ms, or 0.2.
    cells = {
        Flash(sequence=sequence): passes(0.1, 0.1, host=[20.0] * 10)
        | {"forward_backward": [0.5 if place < disturbed else 0.2] * 10}
        for place, sequence in enumerate((1024, 2048))
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert f"{sentence} not to be trusted" in text if disturbed else "not to be trusted" not in text
    assert text.count("0.500 ms, of which the passes 0.200 ms and the host 0.0200 ms") == disturbed


@pytest.mark.parametrize(
    ("peaks", "sentence"),
    [
        ({}, "."),
        ({(512, "triton"): 3.2}, ", 2.50× the peak at half the length."),
        ({(1024, "plain"): 32.0}, "; plain attention peaks at 32.0 MiB."),
    ],
)
def test_peak_memory_at_the_longest_sequence(peaks, sentence):
    measured = {(1024, "triton"): 8.0} | peaks
    cells = {
        Flash(sequence=sequence, implementation=name): passes(1.0, 1.0, peak_memory=peak)
        for (sequence, name), peak in measured.items()
    }
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), GPU)
    assert f"At 1024 tokens (d = 64, bf16) a forward and backward pass peaks at 8.00 MiB{sentence}" in text


@pytest.mark.parametrize("units", [{}, {"forward": [6.0] * 10, "backward": [8.8] * 10}])
def test_units_of_fp32_products(units):
    # 6 over 2 ms forward, 8.8 over 4.4 backward.
    cells = {
        Flash(precision="fp32"): passes(1.0, 1.0),
        Flash(precision="fp32", implementation="plain"): passes(2.0, 2.0),
    }
    ablation = {FlashAblation(precision="fp32"): {"forward": [2.0] * 10, "backward": [4.4] * 10}}
    if units:
        ablation[FlashAblation(precision="fp32", without="matrix_units")] = units
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells, ablation)), GPU)
    assert "the two do not run on the same units of the chip" in text
    assert ("On those units our kernels would take 2.00× to 3.00× as long" in text) == bool(units)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA A100"])
def test_the_record_of_another_chip(gpu):
    origin = provenance(**H200 | {"gpu": gpu})
    cells = {Flash(**BOARD): passes(2.0, 4.0), Flash(**BOARD, d=128): passes(4.0, 5.0)}
    text = prose("flash_benchmarking", flash_benchmarking.answers(flash_tables(cells)), origin)
    assert "Ours takes 6.00 ms at d = 64 (9.00 ms at d = 128), against 5.36 ms" in text
    assert ("the same arithmetic rates" in text) == (gpu == "NVIDIA H200")
    assert "it was not measured here, nor were clock and power" in text
    assert "the fastest library measured is" not in text


def test_an_ablation_without_the_gradients_of_a_sum():
    ablation = {FlashAblation(): {"forward": [2.0] * 10, "backward": [4.4] * 10}}
    answers = flash_benchmarking.answers(flash_tables({Flash(**BOARD): passes(2.0, 4.0)}, ablation))
    assert "which of these makes the difference was not measured" in prose("flash_benchmarking", answers, GPU)


def test_what_of_two_backward_passes_the_host_sets():
    # 1024 tokens: graphs of 0.1 in calls of 0.3 ms, so the host; 8192: no replay, the device, 6 against 2.
    short, long = {"sequence": 1024}, {"sequence": 8192}
    cells = {
        Flash(**short, implementation="triton"): passes(0.1, 0.2, graph=[0.1] * 10),
        Flash(**short, implementation="triton_compiled_backward"): passes(0.1, 0.4, graph=[0.1] * 10),
        Flash(**long, implementation="triton"): passes(1.0, 2.0),
        Flash(**long, implementation="triton_compiled_backward"): passes(1.0, 6.0),
    }
    text = prose("flash_backward", flash_backward.answers(flash_tables(cells)), GPU)
    assert "Where the device sets the pace, our kernels are 3.00× as fast" in text
    assert "In 1 of 2 cells the host sets the pace of one of the two" in text


def test_attention_that_was_not_measured():
    assert "Not measured on this machine." in plain({})
    assert "Not measured on this machine." not in plain(dict([attention(1024, False, 1.0, 2.0)]), CPU)
    assert "Nothing runs out of memory here" not in plain(dict([attention(1024, False, 1.0, 2.0)]), CPU)


def flash(cells, origin=GPU, **others):
    """The section on benchmarks of FlashAttention."""
    answers = flash_benchmarking.answers(flash_tables(cells, origin=origin, **others))
    return prose("flash_benchmarking", answers, origin)


def backward(cells, origin=GPU):
    """The section on its backward pass."""
    return prose("flash_backward", flash_backward.answers(flash_tables(cells, origin=origin)), origin)


def test_the_kernels_in_the_words_of_their_device():
    gpu, cpu = (prose("flash_forward", flash_forward.answers({}), origin) for origin in (GPU, CPU))
    for words in ("tensor memory accelerator", "six bf16 products on the tensor cores", "*(d) Hopper*"):
        assert words in gpu
        assert words not in cpu
    assert "six bf16 products, which keeps" in cpu
    gpu, cpu = (backward({Flash(): passes(1.0, 1.0)}, origin) for origin in (GPU, CPU))
    assert "The Hopper kernels make the one pass after all" in gpu
    assert "The Hopper kernels" not in cpu
    gpu, cpu = (flash({Flash(): passes(1.0, 1.0)}, origin) for origin in (GPU, CPU))
    assert "Triton's `do_bench` times each call" in gpu
    assert "draw all implementations, @fig-flash_memory their memory. <fig-flash_latency>" in gpu
    assert "<fig-flash_memory>" in gpu
    assert "Without a GPU the Triton kernels cannot run" in cpu
    assert "draw all implementations. <fig-flash_latency>" in cpu
    assert "<fig-flash_memory>" not in cpu


def test_why_flash_attention_was_not_measured():
    tables = flash_tables({}, origin=CPU) | {"flash": frame("flash", [make_row(Flash(), NEEDS_GPU, CPU)])}
    for section, answers in (("flash_backward", flash_backward), ("flash_benchmarking", flash_benchmarking)):
        assert "Not measured on this machine: needs a CUDA device." in prose(section, answers.answers(tables), CPU)
    assert "Not measured on this machine: no compiled backward pass." in backward({Flash(): passes(1.0, 1.0)})


TWO_WAYS = ("triton", 1.0), ("triton_compiled_backward", 3.0)


@pytest.mark.parametrize(("graph", "paced"), [(1.9, True), (0.5, False)])
def test_who_paces_both_ways_of_the_backward_pass(graph, paced):
    # Calls of 2 and 4 ms; the host paces the one whose replay takes less than nine tenths of that.
    cells = {Flash(implementation=name): passes(1.0, ms, graph=[graph * (1 + ms) / 2] * 10) for name, ms in TWO_WAYS}
    text = backward(cells)
    assert ("Where the device sets the pace, our kernels are 3.00× as fast" in text) == paced
    assert ("In 1 of 1 cells the host sets the pace of one of the two" in text) == (not paced)
    assert "their times are in the appendix" not in text


def test_tables_that_are_too_long_for_the_text():
    # 31 lengths, in both precisions.
    cells = {
        Flash(sequence=128 * length, precision=precision, implementation=name): passes(1.0, ms)
        for length in range(1, 32)
        for precision in ("bf16", "fp32")
        for name, ms in (*TWO_WAYS, ("plain", 4.0))
    }
    tables = flash_tables(cells)
    text = prose("flash_backward", flash_backward.answers(tables), GPU)
    assert "compares the two ways; their times are in the appendix, @tab-backward-ways." in text
    answers = flash_benchmarking.answers(tables)
    text = prose("flash_benchmarking", answers, GPU)
    listed = '#ref(label("tab-flash-bf16")) in bf16, #ref(label("tab-flash-fp32")) in fp32.'
    assert f"Ours beside plain attention at every shape is in the appendix: {listed}" in text
    assert "@tab-flash-training-all has every shape" not in filled(
        "appendix/flash_benchmarking", a=answers, summary={"machine": "M"}
    )


def test_two_libraries_that_are_faster():
    # Ours 2 ms, one library 1 ms in both lengths, another 1.5 in one of them.
    cells = {}
    for sequence, times in (
        (8192, {"sdpa_cudnn": 0.5, "sdpa_flash": 0.75}),
        (16384, {"sdpa_cudnn": 0.5, "sdpa_flash": 2.0}),
    ):
        for name, ms in ({"triton": 1.0} | times).items():
            cells[Flash(sequence=sequence, implementation=name)] = passes(ms, ms)
    text = flash(cells)
    assert "ours is slower than SDPA flash in bf16 in 1 of 2 cells (8192 tokens)," in text
    assert "its backward pass 0.75×; SDPA cuDNN in bf16 in 2 of 2 cells (8192 to 16 384 tokens)," in text


def test_what_else_was_measured():
    many = {"sequence": 1024, "heads": 32, "batch_size": 2}
    cells = {Flash(**many, implementation=name): passes(1.0, 1.0) for name in ("triton", "sdpa_flash")}
    cells |= {Flash(implementation=name): passes(1.0, 1.0) for name in ("triton", "tiled", "tiled_compiled")}
    steps = {EndToEnd(size="nano", attention=name): step_of(1.0, 1.0, 1.0) for name in ("plain", "flash")}
    ablation = {
        FlashAblation(precision=precision): {"forward": [2.0] * 10, "backward": [4.0] * 10}
        for precision in ("bf16", "fp32")
    }
    text = flash(cells, steps=steps, ablation=ablation)
    assert "with 64 of them, @tab-flash-training-all every shape, in the appendix." in text
    assert "*The PyTorch version, compiled.*" in text
    assert "*In the model.*" in text
    assert (
        '(@fig-ablation_ratios, #ref(label("tab-ablation-bf16")), #ref(label("tab-ablation-fp32"))); the ratio' in text
    )
    answers = flash_benchmarking.answers(flash_tables(cells))
    appendix = filled("appendix/flash_benchmarking", a=answers, summary={"machine": "M"})
    assert "@tab-flash-training-all has every shape with many heads." in appendix
    text = flash({Flash(): passes(1.0, 1.0)})
    for words in (
        "*Many heads.*",
        "*The PyTorch version, compiled.*",
        "*In the model.*",
        "*What each decision is worth.*",
    ):
        assert words not in text


def test_a_leaderboard_without_our_time_or_power():
    text = flash({Flash(**BOARD): passes(2.0, 4.0, handout=[6.6] * 10)})
    assert "by it ours takes 6.60 ms at d = 64." in text
    assert "Ours takes 6.00 ms at d = 64, against" in text
    text = flash({Flash(**BOARD, implementation="sdpa_flash"): passes(2.0, 4.0)})
    assert "Ours takes" not in text


def test_short_calls_whose_device_time_is_not_known():
    cells = {Flash(implementation=name): passes(0.1, 0.1, host=[50.0] * 10) for name in ("triton", "sdpa_flash")}
    text = flash(cells)
    assert "Up to 4096 tokens the host may set the pace." in text
    assert "By @tab-flash-short, on the device" not in text


# Device busy 99 of 100 and 98 of 101 ms in the large model, compiled 9 of 10 and 9.5 of 10; in the small one 4.5 of 10
# and 4.6 of 9.
WITH_SDPA = {
    EndToEnd(size="nano", context=64): step_of(4.0, 6.0, 2.0, device_busy=6.0, peak_memory=4096.0),
    EndToEnd(size="nano", context=64, attention="flash"): step_of(4.0, 4.0, 2.0, device_busy=4.5, peak_memory=2048.0),
    EndToEnd(size="nano", context=64, attention="sdpa"): step_of(3.0, 4.0, 2.0, device_busy=4.6),
    EndToEnd(size="mini", context=64, attention="flash"): step_of(40.0, 50.0, 10.0, device_busy=99.0),
    EndToEnd(size="mini", context=64, attention="sdpa"): step_of(41.0, 50.0, 10.0, device_busy=98.0),
    EndToEnd(size="mini", context=64, attention="flash", compiled=True): step_of(4.0, 5.0, 1.0, device_busy=9.0),
    EndToEnd(size="mini", context=64, attention="sdpa", compiled=True): step_of(4.0, 5.0, 1.0, device_busy=9.5),
}


def test_the_training_step_beside_that_of_sdpa_and_who_sets_the_pace():
    answers = flash_benchmarking.answers(flash_tables({Flash(): passes(1.0, 1.0)}, steps=WITH_SDPA))
    text = prose("flash_benchmarking", answers, GPU)
    assert (
        "Where the device sets the pace (mini and mini (compiled)), SDPA's step takes 1.00× to 1.01× as long as ours."
        in text
    )
    assert (
        "Where the host sets the pace of one or both (nano), SDPA's takes 0.90× as long,"
        " while the device works 1.02× as long for it." in text
    )
    assert [line[0] for line in answers["model"].rows] == ["nano", "mini", "mini (compiled)"]
    small = ["12.0", "9.0", "10.0", "1.20×", "0.90×", "51", "45", "4.0", "2.0"]
    assert answers["model"].rows[0][3:] == small
    assert answers["model_gain"] == (1.2, "nano", 64)


def test_what_a_call_costs_the_host_is_named_where_the_host_sets_the_pace():
    cells = {
        Flash(implementation=name): passes(0.1, 0.1, host=[host] * 10, graph=[0.05] * 10)
        for name, host in (("triton", 90.0), ("sdpa_flash", 60.0))
    }
    assert "1.02× as long for it: by @tab-flash-short a call of ours costs the host more." in flash(
        cells, steps=WITH_SDPA
    )


def test_steps_whose_pace_nobody_measured_are_not_held_against_sdpa():
    steps = {
        cell: {name: found for name, found in metrics.items() if name != "device_busy"}
        for cell, metrics in WITH_SDPA.items()
    }
    text = flash({Flash(): passes(1.0, 1.0)}, steps=steps)
    assert "*In the model.*" in text
    assert "as long as ours" not in text
    assert "sets the pace of one" not in text
