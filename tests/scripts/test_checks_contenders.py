"""The self-checks of what contenders declare, on made-up rows that are as declared, and on doctored ones."""

import re

import pytest

from cs336_systems.accounting.contenders import groups, weight_bytes
from cs336_systems.experiments.data_parallel import DataParallelTraining
from cs336_systems.experiments.fsdp import FullyShardedTraining
from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.checks import contenders
from scripts.tables import merge
from scripts.views.data import load, select
from tests.samples import H200, provenance, rows_of, write_raw

CELLS = {
    "data_parallel": [
        DataParallelTraining(processes=2, precision=precision, tried=precision == "bf16")
        for precision in ("fp32", "bf16")
    ],
    "optimizer_sharding": [OptimizerSharding(processes=processes) for processes in (2, 4)],
    "fsdp": [FullyShardedTraining(precision=precision) for precision in ("fp32", "bf16")],
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Tables of the handout's first cells on an H200. Not to be changed."""
    folder = tmp_path_factory.mktemp("h200")
    tables = {}
    for name, cells in CELLS.items():
        raw = write_raw(folder, name, rows_of(cells, provenance(**H200)))
        merge(name, [str(raw)], str(folder / f"{name}.csv"), "nvidia-h200")
        tables[name] = load(name, folder / f"{name}.csv")
    return tables


def outcomes(tables):
    return [(found.outcome, found.detail) for found in contenders.checks(tables)]


def test_what_is_declared_passes(sound):
    assert {outcome for outcome, _ in outcomes(sound)} == {"passed"}


def test_rows_of_earlier_code_tell_less(sound):
    seen = ["collectives", "collective_bytes", "tokens", "written"]
    earlier = {name: table[~table["metric"].isin(seen)] for name, table in sound.items()}
    told = outcomes(earlier)
    assert [outcome for outcome, _ in told[:5]] == ["passed", "not applicable", "passed", *2 * ["not applicable"]]
    assert told[1][1] == "not told by these rows"
    assert "; not told by these rows of " in told[2][1]


def swap(column, one, other, **wanted):
    """Exchange two labels."""

    def plant(table):
        index = select(table, **wanted).index
        labels = table.loc[index, column]
        assert {one, other} <= set(labels)
        table.loc[index, column] = labels.replace({one: other, other: one})

    return plant


def scale(factor, **wanted):
    """Multiply means."""

    def plant(table):
        index = select(table, **wanted).index
        assert len(index)
        table.loc[index, "mean"] = table.loc[index, "mean"] * factor

    return plant


def rename(wrapper, name):
    """Give a contender a name that no other has."""

    def plant(table):
        table["wrapper"] = table["wrapper"].replace(wrapper, name)

    return plant


FAULTS = {
    "naive and flat exchanged": ("data_parallel", swap("wrapper", "naive", "flat"), "naive, .* and 435 declared"),
    "naive and overlapped exchanged": ("data_parallel", swap("wrapper", "naive", "overlapped"), "0 × all_reduce in"),
    "ours and the baseline exchanged": ("data_parallel", swap("wrapper", "flat", "none"), "none, .* and none declared"),
    "bucket sizes exchanged": (
        "data_parallel",
        swap("bucket_mb", "10", "1000", wrapper="bucketed"),
        "bucketed 10, .* 435 declared",
    ),
    "PyTorch's bucket sizes exchanged": (
        "data_parallel",
        swap("bucket_mb", "25", "100", wrapper="ddp_view"),
        "ddp_view 25, .* × all_reduce in passes",
    ),
    "PyTorch's, and its view": ("data_parallel", swap("wrapper", "ddp", "ddp_view", bucket_mb="25"), "broadcast"),
    "the dtype on the wire": (
        "data_parallel",
        swap("wrapper", "bf16_wire", "priority"),
        "priority 100, .* bytes by all_reduce in passes",
    ),
    "half of the batch": ("data_parallel", scale(0.5, metric="tokens", wrapper="none"), "none, .* 1024 tokens of 2048"),
    "copies": ("data_parallel", scale(1.1, metric="written", wrapper="ddp"), "ddp 25, .* times, and 2 times declared"),
    "a sum of collectives": ("data_parallel", scale(2, metric="collectives", wrapper="flat", kind=""), "2 in all"),
    "an unknown one": ("data_parallel", rename("naive", "new"), "new, xl"),
    "what is hidden": (
        "data_parallel",
        scale(9, metric="hidden", wrapper="bucketed"),
        r"bucketed 1, .* ms, busy .* of",
    ),
    "a busy device": ("optimizer_sharding", scale(9, metric="device_busy"), "sharded, .* ms, busy .* of"),
    "a longer step": ("data_parallel", scale(9, metric="timeline_length", wrapper="flat"), "flat, .* timeline "),
    "a longer gather": ("fsdp", scale(9, metric="communication", kind="all_gather"), "fsdp, .* ms, busy"),
    "no communication": ("data_parallel", scale(0, metric="communication", wrapper="naive"), "naive, .*: 0.00 ms"),
    "no reduction": ("fsdp", scale(0, metric="communication", kind="reduce_scatter"), "reduce_scatter 0.00 ms"),
    "optimizers exchanged": ("optimizer_sharding", swap("contender", "unsharded", "sharded"), "in update, and none"),
    "PyTorch's views": (
        "optimizer_sharding",
        swap("contender", "zero_redundancy", "zero_redundancy_view"),
        "zero_redundancy, .* broadcast in update, and 435 declared",
    ),
    "by layer and by block": ("fsdp", swap("wrapper", "fsdp", "fsdp_blocks"), "fsdp, .* all_gather in passes, and 450"),
    "ours and PyTorch's": ("fsdp", swap("wrapper", "fsdp_blocks", "fully_shard"), "fully_shard, .* all_gather"),
    "weights that are kept": (
        "fsdp",
        scale(0.5, metric="collectives", wrapper="fully_shard", kind="passes all_gather"),
        "fully_shard, .* all_gather in passes",
    ),
    "weights in fp32": (
        "fsdp",
        scale(2, metric="collective_bytes", wrapper="fully_shard", kind="passes all_gather", precision="bf16"),
        "fully_shard, .* bytes by all_gather in passes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed_and_named(sound, fault):
    name, plant, complaint = FAULTS[fault]
    table = sound[name].copy()
    plant(table)
    failed = [detail for outcome, detail in outcomes(sound | {name: table}) if outcome == "failed"]
    assert any(re.search(complaint, detail) for detail in failed), failed


def test_weights_are_listed_as_gradients_arrive():
    class Cell:
        size, vocab_size = "odd:d_model=24,d_ff=37,num_layers=2,num_heads=3", 101

    block = [3 * [24 * 37], 24, 4 * [24 * 24], 24]
    flat = [*block[0], block[1], *block[2], block[3]]
    assert weight_bytes(Cell) == [4 * numbers for numbers in [101 * 24, 24, *flat, *flat, 101 * 24]]
    assert groups([3, 3, 3, 9, 1, 1, 10, 2], 6) == 6
    assert groups([5], 1) == 1
