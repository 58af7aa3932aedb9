"""The kernel profile on recorded tables: what its self-checks allow, and what its section quotes."""

import pytest

from cs336_systems.accounting.transformer import forward_products
from cs336_systems.experiments.kernel_profile import KernelProfile
from cs336_systems.sizes import parse_size
from scripts.checks import checks_of, kernel_profile
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


@pytest.fixture
def table(sound):
    return sound["kernel_profile"].copy()


CELL = {"size": "xl", "context": 512, "precision": "fp32", "compiled": False, "attention": "plain"}


def where(table, **wanted):
    """The index of the one row that has these values."""
    (index,) = select(table, **wanted).index
    return index


def outcome(table, sound, check):
    checks = {found.check: found for found in checks_of(kernel_profile, sound | {"kernel_profile": table})}
    (found,) = [found for name, found in checks.items() if check in name]
    return found.outcome, found.detail


def test_a_short_stage_may_differ_by_what_recording_an_event_takes(table, sound):
    events, busy, idle = (
        where(table, **CELL, metric=metric, stage="loss", mode="train_step")
        for metric in ("stage_profiled", "stage_busy", "stage_idle")
    )
    table.loc[events, "mean"] = table.loc[[busy, idle], "mean"].sum() + 0.9 * kernel_profile.STAGE_SLACK_MS
    assert outcome(table, sound, "CUDA events")[0] == "passed"


@pytest.mark.parametrize(("factor", "result"), [(1.08, "passed"), (1.12, "failed")])
def test_a_host_that_sets_the_pace_may_leave_a_stage_late(table, sound, factor, result):
    stage = {"stage": "backward", "mode": "train_step"}
    busy, idle, events = (
        where(table, **CELL, **stage, metric=metric) for metric in ("stage_busy", "stage_idle", "stage_profiled")
    )
    moved = 0.3 * table.loc[busy, "mean"].item()
    table.loc[busy, "mean"] -= moved
    table.loc[idle, "mean"] += moved
    table.loc[events, "mean"] *= factor
    assert outcome(table, sound, "CUDA events")[0] == result


def test_a_missing_product_is_counted(table, sound):
    index = where(table, **CELL, metric="kernel", range="scores", category="matmul", stage="forward", mode="inference")
    table.loc[index, "n"] -= table.loc[index, "steps"]
    result, detail = outcome(table, sound, "matmul")
    assert (result, "432 kernels, 433 products" in detail) == ("failed", True)
    assert forward_products(parse_size("xl")) == 433


def test_sums_of_partial_products_are_no_products(table, sound):
    index = where(table, **CELL, metric="kernel", range="scores", category="matmul", stage="forward", mode="inference")
    table.loc[len(table)] = table.loc[index]
    for name in ("splitKreduce_kernel", "sm80_xmma_gemm_f32f32_tn_n_tilesize64x64x8_ffma_split_k"):
        table.loc[len(table) - 1, "kernel"] = name
        assert outcome(table, sound, "matmul")[0] == "passed"
    table.loc[len(table) - 1, "kernel"] = "nvjet_another"
    assert outcome(table, sound, "matmul")[0] == "failed"


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
