"""Numbers that the report quotes of the kernel profile, on recorded tables."""

import pytest

from cs336_systems.experiments.kernel_profile import KernelProfile
from scripts.views.data import frame, one, select
from scripts.views.kernels import (
    FORWARD,
    attention_times,
    forward_passes,
    kernels,
    profiled_closely,
    top,
)
from tests.samples import planned_cells, rows_of


@pytest.fixture(scope="module")
def sound():
    """Tables of some of the handout's cells on an H200. Not to be changed."""

    def cells(name):
        return [
            cell
            for cell in planned_cells(name, "handout")
            if cell.size in ("small", "xl", "2.7B", "10B") and (cell.context == 512 or cell.attention == "flash")
        ] + [KernelProfile(size="xl", context=1024, precision="bf16", mode="inference")] * (name == "kernel_profile")

    return {name: frame(name, rows_of(cells(name))) for name in ("kernel_profile", "end_to_end")}


CELL = {"size": "xl", "context": 512, "precision": "fp32", "compiled": False, "attention": "plain"}


def test_the_longest_kernel_and_its_calls_are_those_of_the_table(sound):
    forward = top(kernels(sound["kernel_profile"], FORWARD, mode="inference", **CELL | {"size": "2.7B"}))
    # One kernel computes 4 of the 9 matmuls of each of 32 blocks, and the head's.
    assert (forward.calls, forward.category) == (129, "matmul")


def test_the_largest_size_with_a_training_step_is_looked_at_closely(sound):
    assert set(profiled_closely(sound["kernel_profile"])["size"]) == {"2.7B"}  # no training step of 10B


def test_softmax_is_compared_with_the_matmuls_in_time_and_flops(sound):
    rows = select(sound["kernel_profile"], context=512, compiled=False, attention="plain")
    row = one(attention_times(rows), label="xl", precision="bf16")
    launched = select(rows, metric="kernel", stage="forward", mode="inference", size="xl", precision="bf16")
    times = (launched["mean"] * launched["n"]).groupby([launched["range"], launched["category"]]).sum()
    ratio = times["softmax", "softmax"] / (times["scores", "matmul"] + times["final product", "matmul"])
    # Five operations per score against four times the head dimension, 64.
    assert (row["time"], row["flops"]) == (pytest.approx(ratio), 5 / 256)


def test_a_forward_pass_is_compared_with_the_timer_of_the_other_experiment(sound):
    here = select(sound["kernel_profile"], context=512, compiled=False, attention="plain")
    found = forward_passes(here, sound["end_to_end"], on_gpu=True)
    assert len(found) == 8
    host_bound = found[found["host_bound"]]
    assert list(zip(host_bound["label"], host_bound["precision"], strict=True)) == [
        ("small", "fp32"),
        ("small", "bf16"),
        ("xl", "bf16"),
    ]
    assert set(found[found["timer"].isna()]["label"]) == {"10B"}  # of which end_to_end has no inference
