"""Sentences on memory: checkpointing, and what a step holds."""

import re

import pandas
import pytest

from cs336_systems.experiments.block_memory import BlockMemory
from cs336_systems.experiments.checkpointing import Checkpointing
from cs336_systems.measure.measurement import summarize
from cs336_systems.measure.record import make_row
from scripts.answers import gradient_checkpointing, memory_profiling
from scripts.views.data import frame
from tests.prose import CPU, GPU, prose, table
from tests.samples import NEEDS_GPU, OOM, planned_cells, rows_of


def checkpointed(peak, milliseconds):
    """The metrics of a step of 20 equal samples."""
    return {"peak_memory": peak, "step": [milliseconds] * Checkpointing().steps}


def test_the_best_segment_has_neighbours():
    # The lowest of 3, 2 and 4 GiB is that of segments of two blocks; without checkpointing 8 GiB, 4 times as much.
    # Steps of 12, 13 and 15 ms against 10.
    measured = {0: (8192.0, 10.0), 1: (3072.0, 15.0), 2: (2048.0, 13.0), 4: (4096.0, 12.0)}
    cells = {Checkpointing(size="micro", segment=k): checkpointed(*numbers) for k, numbers in measured.items()}
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    text = prose("gradient_checkpointing", answers, GPU)
    assert ", with segments of 2. The next shorter segment measured, 1, peaks at " in text
    assert re.search(r"the next longer, 4, peaks at \S+ \w+, 2\.00× as much\.", text)
    assert re.search(r"Without checkpointing the step peaks at \S+ \w+, 4\.00× the lowest peak\.", text)
    assert "Recomputation makes a step 1.20× to 1.50× as long as without checkpointing." in text


@pytest.mark.parametrize(
    ("flash_step", "verdict"),
    [(12.0, "with checkpointing, flash attention is no worse in either."), (40.0, "neither is the better in both.")],
)
def test_the_shortest_segment_is_the_best_and_flash_attention_is_a_rival(flash_step, verdict):
    # Flash: 8 GiB without, 2 GiB with segments of one block. Plain: segments of 2 and 4, 3 and 4 GiB, 30 and 25 ms.
    flash = {0: (8192.0, 10.0), 1: (2048.0, flash_step)}
    plain = {2: (3072.0, 30.0), 4: (4096.0, 25.0)}
    cells = {
        Checkpointing(size="micro", segment=segment, attention=attention): checkpointed(*numbers)
        for attention, measured in (("flash", flash), ("plain", plain))
        for segment, numbers in measured.items()
    }
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    text = prose("gradient_checkpointing", answers, GPU)
    assert "with segments of 1. A shorter segment would split a block; no longer one was measured." in text
    assert re.search(r"No shorter segment was measured; the next longer, 4, peaks at \S+ \w+, 1\.33× as much\.", text)
    assert re.search(r"Over the 2 segment lengths that ran, the step takes 25.{1,9}30\S* ms\.", text)
    assert verdict in text


def test_segments_without_measured_peaks():
    cells = {
        Checkpointing(size="micro", segment=segment): {"step": [duration] * Checkpointing().steps}
        for segment, duration in {0: 10.0, 2: 12.0}.items()
    }
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", CPU, cells)})
    text = prose("gradient_checkpointing", answers, CPU)
    assert "here the peaks are closed forms alone" in text
    assert "The lowest peak is" not in text
    assert "Recomputation makes a step 1.20× as long as without checkpointing." in text


@pytest.mark.parametrize(
    ("plain", "verdict"),
    [
        # Flash attention with its best segments: 2 GiB and 20 ms.
        ((1024.0, 15.0), "with checkpointing, plain attention is no worse in either."),
        ((1024.0, 25.0), "neither is the better in both."),
        ((3072.0, 25.0), "with checkpointing, flash attention is no worse in either."),
    ],
)
def test_either_attention_may_be_the_better_one_with_checkpointing(plain, verdict):
    measured = {("flash", 0): (8192.0, 10.0), ("flash", 1): (2048.0, 20.0), ("plain", 1): plain}
    cells = {
        Checkpointing(size="micro", attention=attention, segment=segment): checkpointed(*numbers)
        for (attention, segment), numbers in measured.items()
    }
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    text = prose("gradient_checkpointing", answers, GPU)
    assert verdict in text


def test_segments_of_which_none_has_a_peak_and_none_fits():
    rows = [make_row(Checkpointing(size="micro", segment=4), OOM, GPU)]
    whole = table("checkpointing", GPU, {Checkpointing(size="micro", segment=0): checkpointed(8192.0, 10.0)})
    lost = pandas.concat([whole, frame("checkpointing", rows)], ignore_index=True)
    text = prose("gradient_checkpointing", gradient_checkpointing.answers({"checkpointing": lost}), GPU)
    assert "Without checkpointing the step peaks at 8192 MiB." in text
    assert "Out of memory: segment 4." in text
    assert "The lowest peak is" not in text
    found = {1: (4096.0, 15.0), 2: (2048.0, 13.0)}
    cells = {Checkpointing(size="micro", segment=k): checkpointed(*numbers) for k, numbers in found.items()}
    some = pandas.concat([table("checkpointing", GPU, cells), frame("checkpointing", rows)], ignore_index=True)
    text = prose("gradient_checkpointing", gradient_checkpointing.answers({"checkpointing": some}), GPU)
    assert "the next longer, 4, has no measurement." in text
    assert "Without checkpointing" not in text


def test_the_phases_with_the_highest_peaks():
    peaks = {
        1: {"peak_forward": 1.0, "peak_backward": 3.0, "peak_optimizer": 2.0},
        2: {"peak_forward": 1.0, "peak_backward": 3.0, "peak_optimizer": 2.0},
        4: {"peak_forward": 1.0, "peak_backward": 2.0, "peak_optimizer": 3.0},
    }
    cells = {Checkpointing(size="micro", segment=k): checkpointed(4096.0, 10.0) | own for k, own in peaks.items()}
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    text = prose("gradient_checkpointing", answers, GPU)
    assert "are highest in the backward phase in 2 cells and the optimizer phase in 1 cell." in text


@pytest.fixture(scope="module")
def followed():
    """Made-up memory of three kinds of step at each of the contexts at which all of them fit."""
    cells = [cell for cell in planned_cells("memory_profile", "handout") if cell.context <= 512]
    return frame("memory_profile", rows_of(cells, GPU))


@pytest.mark.parametrize(
    ("lower", "sentence"),
    [
        ([], "Autocast raises the peak in all 9 cells measured in both precisions."),
        ([128, 256, 512], "Autocast lowers the peak in all 9 cells measured in both precisions."),
        ([512], "raises the peak in 6 of the 9 cells measured in both precisions; the exceptions: inference at 512"),
        (
            [128, 256],
            "lowers the peak in 6 of the 9 cells measured in both precisions; the exceptions: inference at 512, ",
        ),
    ],
)
def test_where_autocast_raises_the_peak(followed, lower, sentence):
    # Peaks of 2 GiB in fp32; in bf16 of 1 GiB at the contexts where it is to be lower, and 3 GiB elsewhere.
    doctored = followed.copy()
    peaks = doctored["metric"] == "peak_allocated"
    bf16 = doctored["precision"] == "bf16"
    doctored.loc[peaks, "mean"] = 2 * 2.0**30
    doctored.loc[peaks & bf16, "mean"] = 3 * 2.0**30
    doctored.loc[peaks & bf16 & doctored["context"].isin(lower), "mean"] = 2.0**30
    answers = memory_profiling.answers({"memory_profile": doctored, "block_memory": frame("block_memory", [])})
    text = prose("memory_profiling", answers, GPU)
    assert sentence in text
    assert "the replayed peak is not in every cell the one that the allocator counts itself" in text


def changed(followed, *changes):
    """The section's text after each change: the columns of the rows to change, and what these have instead, bytes."""
    doctored = followed.copy()
    for wanted, value in changes:
        rows = (doctored[list(wanted)] == list(wanted.values())).all(axis=1)
        assert rows.any()
        doctored.loc[rows, "mean"] = value
    answers = memory_profiling.answers({"memory_profile": doctored, "block_memory": frame("block_memory", [])})
    return prose("memory_profiling", answers, GPU)


TRAINING = {"mode": "train_step", "precision": "fp32"}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (3, 2, "the activations outweigh the gradients that replace them, so the total is lower at the end"),
        (2, 3, "the gradients outweigh the activations that they replace, so the total is higher at the end"),
    ],
)
def test_whether_memory_grows_in_the_backward_pass(followed, before, after, sentence):
    # GiB of activations when the loss is there, of gradients after the backward pass; nothing else changes.
    ends = TRAINING | {"metric": "stage_end"}
    held = {("loss", "saved activations"): before, ("backward", "gradients"): after}
    held |= {("loss", "gradients"): 0, ("backward", "saved activations"): 0}
    changes = [
        (ends | {"stage": stage, "category": category}, gib * 2.0**30) for (stage, category), gib in held.items()
    ]
    text = changed(followed, *changes)
    assert f"At this context {sentence}" in text
    assert f"activations pile up to {before}.00 GiB until the backward pass begins" in text
    assert "are left at its end" not in text
    assert f"while the gradients grow to {after}.00 GiB" in text
    left = changed(followed, *changes, (ends | {"stage": "backward", "category": "saved activations"}, 2.0**30))
    assert "(1.00 GiB are left at its end)" in left


@pytest.mark.parametrize(
    ("events", "sentence"),
    [(0, "The optimizer neither allocates nor frees anything"), (12, "The optimizer makes 12 allocations and frees.")],
)
def test_what_the_optimizer_allocates(followed, events, sentence):
    stage = TRAINING | {"metric": "stage_events", "stage": "optimizer"}
    assert sentence in changed(followed, (stage, events))


@pytest.mark.parametrize(
    ("copies", "sentence"),
    [(2.0**30, "and 1.00 GiB at that of the training step."), (0.0, "and none at that of the training step, which")],
)
def test_copies_of_weights_at_the_peak(followed, copies, sentence):
    peak = {"metric": "at_peak", "mode": "train_step", "precision": "bf16", "category": "bf16 copies of weights"}
    assert sentence in changed(followed, (peak, copies))


@pytest.mark.parametrize(
    ("bf16", "sentence"),
    [(3, "take 75 % of their memory in fp32, more than half."), (2, "take 50 % of their memory in fp32.")],
)
def test_saved_activations_under_autocast(followed, bf16, sentence):
    peak = {"metric": "at_peak", "mode": "forward", "category": "saved activations"}
    changes = [(peak | {"precision": precision}, gib * 2.0**30) for precision, gib in (("fp32", 4), ("bf16", bf16))]
    assert sentence in changed(followed, *changes)


def block(**sizes):
    """What a block's cell has: the MiB that each operator of attention saves."""
    rows = [summarize("saved_activations", "MiB", [sum(sizes.values())])]
    for operator, mib in sizes.items():
        dtype = "bfloat16" if operator == "matmul" else "float32"
        details = {"range": "attention", "operator": operator, "tensor": f"{dtype} 4×2×512×512"}
        rows.append(summarize("saved", "MiB", [mib], details=details))
    return rows


@pytest.mark.parametrize(
    ("flash", "product", "sentences"),
    [
        # At 512 tokens 48 of 64 MiB, at 128 8 of 32. Under autocast 72 MiB, or 48.5.
        (16.0, 24.0, ["saves 4.00× less.", "saves 1.12× what it does in fp32: bf16 costs memory here."]),
        (64.0, 0.5, ["saves no less.", "saves 0.76× what it does in fp32."]),
        (None, 24.0, ["saves 1.12× what it does in fp32: bf16 costs memory here."]),
    ],
)
def test_what_a_block_saves(flash, product, sentences):
    cells = {
        BlockMemory(size="nano", context=128): block(softmax=6.0, masked_fill=2.0, mul=24.0),
        BlockMemory(size="nano"): block(softmax=32.0, masked_fill=16.0, mul=16.0),
        BlockMemory(size="nano", precision="bf16"): block(softmax=32.0, masked_fill=16.0, matmul=product),
    }
    if flash:
        cells[BlockMemory(size="nano", attention="flash")] = block(mul=flash)
    rows = [make_row(cell, found, GPU) for cell, own in cells.items() for found in own]
    tables = {"memory_profile": frame("memory_profile", []), "block_memory": frame("block_memory", rows)}
    text = prose("memory_profiling", memory_profiling.answers(tables), GPU)
    assert "are 25 % of what the block saves at context 128 and 75 % at 512" in text
    assert "_left by_: the change in allocated memory" in text
    assert ("With flash attention" in text) == bool(flash)
    for sentence in sentences:
        assert sentence in text
    assert "Some cells differ from the closed form" in text


def test_a_block_at_one_context_in_one_precision_on_a_cpu():
    cell = BlockMemory(size="nano")
    rows = [make_row(cell, found, CPU) for found in block(softmax=32.0, masked_fill=16.0, mul=16.0)]
    tables = {"memory_profile": frame("memory_profile", []), "block_memory": frame("block_memory", rows)}
    text = prose("memory_profiling", memory_profiling.answers(tables), CPU)
    assert "A block of nano by itself, batch 4." in text
    assert "In fp32 the attention weights and their mask" not in text
    assert "Under autocast plain attention keeps its weights twice" not in text
    assert "the change in allocated memory" not in text


def test_checkpointing_that_was_not_measured():
    empty = gradient_checkpointing.answers({"checkpointing": frame("checkpointing", [])})
    text = prose("gradient_checkpointing", empty, GPU)
    assert "Not measured on this machine." in text
    assert "and what these take for the blocks of" not in text
    cells = {Checkpointing(size="micro", segment=0): checkpointed(8192.0, 10.0)}
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    assert "and what these take for the blocks of micro in (b), by attention" in prose(
        "gradient_checkpointing", answers, GPU
    )


def test_the_shorter_segment_has_no_measurement():
    found = {2: (2048.0, 13.0), 4: (4096.0, 12.0)}
    cells = {Checkpointing(size="micro", segment=k): checkpointed(*numbers) for k, numbers in found.items()}
    lost = frame("checkpointing", [make_row(Checkpointing(size="micro", segment=1), OOM, GPU)])
    some = pandas.concat([table("checkpointing", GPU, cells), lost], ignore_index=True)
    text = prose("gradient_checkpointing", gradient_checkpointing.answers({"checkpointing": some}), GPU)
    assert "The next shorter segment measured, 1, has no measurement;" in text


def test_memory_that_was_not_followed():
    tables = {name: frame(name, []) for name in ("memory_profile", "block_memory")}
    assert "Not measured on this machine." in prose("memory_profiling", memory_profiling.answers(tables), CPU)
    cell = planned_cells("memory_profile", "smoke")[0]
    tables["memory_profile"] = frame("memory_profile", [make_row(cell, NEEDS_GPU, CPU)])
    text = prose("memory_profiling", memory_profiling.answers(tables), CPU)
    assert "Memory over time was not measured on this machine: needs a CUDA device. The answers" in text


def without(followed, **wanted):
    """The section's text without some rows."""
    kept = followed[(followed[list(wanted)] != list(wanted.values())).any(axis=1)]
    assert len(kept) < len(followed)
    answers = memory_profiling.answers({"memory_profile": kept, "block_memory": frame("block_memory", [])})
    return prose("memory_profiling", answers, GPU)


def test_stages_without_categories_or_events(followed):
    text = without(followed, **TRAINING, metric="stage_end", stage="backward")
    assert "Forward, loss and backward can be told apart" not in text
    assert "Forward, loss and backward can be told apart" in changed(followed)
    text = without(followed, **TRAINING, metric="stage_events", stage="optimizer")
    assert "The optimizer" not in text


def test_a_forward_pass_without_sums_of_the_residual_stream(followed):
    words = "sums are the stream itself", "The residual stream is among what autocast leaves in fp32"
    text = without(followed, metric="residual_tensors", operator="add")
    for said in words:
        assert said not in text
        assert said in changed(followed)


def test_a_precision_whose_activations_are_not_known(followed):
    text = without(followed, metric="at_peak", mode="forward", category="saved activations", precision="fp32")
    assert "Saved activations of the forward pass take" not in text


def test_one_cell_in_which_autocast_raises_the_peak(followed):
    peak = {"metric": "peak_allocated", "precision": "bf16"}
    cells = [{"context": context, "mode": mode} for context in (128, 256, 512) for mode in ("inference", "forward")]
    cells += [{"context": context, "mode": "train_step"} for context in (128, 256, 512)]
    changes = [({"metric": "peak_allocated", "precision": "fp32"}, 2 * 2.0**30)]
    changes += [(peak | cell, (3 if place == 0 else 1) * 2.0**30) for place, cell in enumerate(cells)]
    text = changed(followed, *changes)
    assert "lowers the peak in 8 of the 9 cells measured in both precisions; the exception: inference at 128." in text
    text = changed(followed, changes[0], *((wanted, 4 * 2.0**30 - bytes) for wanted, bytes in changes[1:]))
    assert "raises the peak in 8 of the 9 cells measured in both precisions; the exception: inference at 128." in text


@pytest.mark.parametrize(("context", "told"), [(512, True), (128, False)])
def test_where_the_closed_form_puts_the_peak(context, told):
    # For small, segments of one block are the best; at 512 tokens the first block has the peak, at 128 the optimizer.
    cells = {Checkpointing(size="small", segment=1, context=context): checkpointed(4096.0, 10.0)}
    answers = gradient_checkpointing.answers({"checkpointing": table("checkpointing", GPU, cells)})
    text = prose("gradient_checkpointing", answers, GPU)
    assert ("It puts that peak at the first segment, the last of the backward pass" in text) == told


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        # 4 · 64² + 3 · 64 · 256 + 2 · 64 weights of 4 bytes; 4 sequences of 512 tokens of 64 numbers.
        ({}, "0.250 MiB + 0.500 MiB = 0.750 MiB expected at context 512."),
        ((0.25048828125, 0.5), "= 0.750 MiB expected at context 512, 0.750 MiB measured, and as expected in every"),
        ((0.5, 0.5), "= 0.750 MiB expected at context 512, 1.00 MiB measured."),
    ],
)
def test_the_gradients_of_a_block(metrics, sentence):
    found = dict(zip(("parameter_gradients", "input_gradient"), metrics, strict=False))
    rows = [summarize(name, "MiB", [mib]) for name, mib in found.items()]
    rows = [make_row(BlockMemory(size="nano"), row, GPU) for row in [*block(mul=1.0), *rows]]
    tables = {"memory_profile": frame("memory_profile", []), "block_memory": frame("block_memory", rows)}
    assert sentence in prose("memory_profiling", memory_profiling.answers(tables), GPU)


@pytest.mark.parametrize(("copied", "told"), [(["query", "key"], True), (["query"], False)])
def test_copies_of_a_normalized_input(copied, told):
    details = {"operator": "linear", "tensor": "bfloat16 4×512×64"}
    copies = [summarize("saved", "MiB", [0.25], details=details | {"range": f"attention.{name}"}) for name in copied]
    cell = BlockMemory(size="nano", precision="bf16")
    rows = [make_row(cell, row, GPU) for row in [*block(softmax=1.0), *copies]]
    tables = {"memory_profile": frame("memory_profile", []), "block_memory": frame("block_memory", rows)}
    text = prose("memory_profiling", memory_profiling.answers(tables), GPU)
    assert ("so attention.query and attention.key each save a copy of their own." in text) == told
