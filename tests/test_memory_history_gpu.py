"""The memory instrument on a GPU: its replay against the allocator's counters, its categories against known sizes."""

import gc
import itertools
import random

import pytest
import torch

from cs336_systems.accounting import transformer
from cs336_systems.benchmarks import memory_profile
from cs336_systems.experiments.memory_profile import MemoryProfile
from cs336_systems.measure.memory_history import record_step
from cs336_systems.measure.memory_timeline import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    UNCLASSIFIED,
    WEIGHT_COPIES,
    replay,
)
from cs336_systems.sizes import parse_size

pytestmark = [pytest.mark.gpu, pytest.mark.numeric]

CUDA = torch.device("cuda")
TINY = "tiny:d_model=24,d_ff=40,num_layers=2,num_heads=3"
WIDE = "wide:d_model=1120,d_ff=2880,num_layers=3,num_heads=7"  # blocks that are not divided, and blocks that are
VOCABULARY = 1003


@pytest.fixture(autouse=True)
def left_over():
    """Bytes that other tests have left in use; no workspace is among them."""
    torch.manual_seed(0)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def rows_of(cell):
    return memory_profile.measure(cell, CUDA)


def value(rows, metric, **details):
    """The mean of the one row, or 0 if the category does not occur."""
    chosen = [row.mean for row in rows if row.metric == metric and dict(row.details) == details]
    assert len(chosen) <= 1
    return chosen[0] if chosen else 0


@pytest.mark.parametrize("mode", ["inference", "forward", "train_step"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("size", "context"), [(TINY, 37), (WIDE, 300)])
def test_the_replay_agrees_with_the_allocator_and_categories_with_sizes(size, context, precision, mode, left_over):
    cell = MemoryProfile(size=size, context=context, vocab_size=VOCABULARY, precision=precision, mode=mode)
    rows = rows_of(cell)
    shape = parse_size(size)
    peak = value(rows, "peak_allocated")
    assert value(rows, "peak_replayed") == peak
    assert sum(value(rows, "at_peak", category=category) for category in CATEGORIES) == peak
    assert value(rows, "most", category=UNCLASSIFIED) <= left_over
    trains = mode == "train_step"
    weights = 4 * transformer.parameters(shape, VOCABULARY)
    copies = transformer.weight_copy_bytes(shape, VOCABULARY) if precision == "bf16" else 0
    most = {category: value(rows, "most", category=category) for category in CATEGORIES}
    assert most[PARAMETERS] == weights
    assert most[GRADIENTS] == weights * trains
    assert most[OPTIMIZER_STATE] == transformer.adamw_bytes(shape, VOCABULARY) * trains
    assert most[WEIGHT_COPIES] == copies
    assert (most[ACTIVATIONS] > 0) == (mode != "inference")


def recorded(stage):
    recording = record_step({"forward": stage}, dict, [], CUDA)
    return recording, replay(recording)


def test_any_sequence_of_requests_and_releases():
    """Sizes from one byte to 60 MB, in both pools, with gaps that are filled, merged or given back."""
    dice = random.Random(1)
    held = [torch.empty(dice.choice([100, 3_000_000, 25_000_000]), dtype=torch.uint8, device=CUDA) for _ in range(20)]

    def churn():
        for step in range(1500):
            if held and dice.random() < 0.5:
                held.pop(dice.randrange(len(held)))
            else:
                size = int(10 ** dice.uniform(0, 7.8))
                held.append(torch.empty(size, dtype=torch.uint8, device=CUDA))
            if step == 700:
                torch.cuda.empty_cache()

    recording, timeline = recorded(churn)
    assert {"segment_alloc", "segment_free"} <= {event.action for event in recording.events}
    assert max(timeline.totals()) == recording.peak
    assert timeline.totals()[-1] == torch.cuda.memory_allocated()


def test_two_streams():
    """Memory that another stream still reads when it is freed is not in use any more, but cannot be used again yet."""
    side = torch.cuda.Stream()

    def work():
        kept = []
        for size in (3_000_000, 70_000, 900, 12_000_000):
            x = torch.zeros(size, device=CUDA)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                kept.append(x * 2)
                x.record_stream(side)
            del x
            kept.append(torch.zeros(size + 5, device=CUDA))
        torch.cuda.synchronize()
        kept.pop()
        torch.zeros(100, device=CUDA)  # has the allocator look at what has been released

    recording, timeline = recorded(work)
    actions = [event.action for event in recording.events]
    assert any(pair[0] == "free_requested" and pair[1] != "free_completed" for pair in itertools.pairwise(actions))
    assert max(timeline.totals()) == recording.peak
    assert timeline.totals()[-1] == torch.cuda.memory_allocated()


def test_running_out_of_memory_ends_the_recording():
    with pytest.raises(torch.OutOfMemoryError):
        recorded(lambda: torch.empty(2**50, dtype=torch.uint8, device=CUDA))
    kept = torch.empty(1000, device=CUDA)
    assert not any(torch.cuda.memory._snapshot()["device_traces"])
    _, timeline = recorded(kept.clone)
    assert [allocation.requested for allocation in timeline.made()] == [4000]
