"""The experiment on activation checkpointing: what it saves on a CPU, and the memory of its phases on a GPU."""

from functools import partial

import pytest
import torch

from cs336_systems.benchmarks import checkpointing
from cs336_systems.experiments.checkpointing import Checkpointing

SIZE = "odd:d_model=30,d_ff=44,num_layers=5,num_heads=3"


def test_longer_segments_save_less_and_run_each_block_twice():
    kind = partial(Checkpointing, size=SIZE, context=11, vocab_size=50, warmup=0, steps=2)
    measured = [checkpointing.measure(kind(segment=segment), torch.device("cpu")) for segment in (0, 1, 2, 5)]
    cells = [{row.metric: row for row in rows} for rows in measured]
    saved = [cell["saved_for_backward"].mean for cell in cells]
    assert saved == sorted(saved, reverse=True)
    assert len(set(saved)) == 4
    residual = 4 * 4 * 11 * 30 / 2**20
    assert saved[1] - saved[3] == pytest.approx(4 * residual)  # five inputs against one
    assert [cell["block_calls"].mean for cell in cells] == [5, 10, 10, 10]
    for cell in cells:
        assert cell["step"].n == cell["forward"].n == 2
        assert cell["peak_memory"].status == cell["peak_backward"].status == "skipped"


@pytest.mark.gpu
def test_the_peak_is_that_of_its_worst_phase():
    cell = Checkpointing(size="small", context=256, segment=2, warmup=2, steps=2)
    metrics = {row.metric: row.mean for row in checkpointing.measure(cell, torch.device("cuda"))}
    peaks = [metrics[f"peak_{phase}"] for phase in ("forward", "backward", "optimizer")]
    assert metrics["peak_memory"] == pytest.approx(max(peaks), rel=0.01)
    assert metrics["memory_before_step"] < metrics["memory_before_backward"] < metrics["peak_backward"]
    saved = metrics["memory_before_backward"] - metrics["memory_before_step"]
    assert saved == pytest.approx(metrics["saved_for_backward"], rel=0.03)  # an allocator's blocks are a little larger
