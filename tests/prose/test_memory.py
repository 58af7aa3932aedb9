"""Sentences on memory: checkpointing, and what a step holds."""

import re

import pytest

from cs336_systems.experiments.checkpointing import Checkpointing
from scripts.answers import gradient_checkpointing, memory_profiling
from scripts.data import frame
from tests.prose import CPU, GPU, prose, table
from tests.samples import planned_cells, rows_of


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
