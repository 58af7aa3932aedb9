"""A user's own implementations take turns with all others: right ones are timed; of wrong ones it is said why not."""

import re
from unittest import mock

import pytest
import torch

from cs336_systems.benchmarks.comparison.measure import measure
from cs336_systems.experiments.base import make_cell
from cs336_systems.experiments.data_parallel import PHASES
from cs336_systems.experiments.registry import EXPERIMENTS
from tests.samples import ROOT
from tests.support.cheats_in_training import CHEATS
from tests.support.ranks import on_all_ranks

CELL = {
    "size": "odd:d_model=24,d_ff=37,num_layers=2,num_heads=3",
    "context": 7,
    "batch_size": 3,
    "vocab_size": 101,
    "rounds": 2,
    "warmup": 1,
    "steps": 2,
}
OFF = r"not timed: after 3 steps the change of \S+ has a relative error of [\d.]+ against a single process"
OFF_AT_FULL_SIZE = r"not timed: its gradient of \S+ has a relative error of [\d.]+ against the mean over the ranks"
RIGHT = {
    "data_parallel": ["DDP", "adapter-ddp", "emmys-ddp", "pytorchs-ddp"],
    "optimizer_sharding": ["ShardedOptimizer", "adapter-optimizer", "pytorchs-optimizer"],
    "fsdp": ["FSDP", "MyFSDP", "adapter-fsdp", "pytorchs-fsdp"],
}
"""Small ones, the examples' and PyTorch's. This project's are contenders."""
ADAPTERS, EMMYS = (f"{ROOT}/examples/{name}/tests.adapters" for name in ("my_systems", "class/emmy"))
PLACES = {
    "MyFSDP": "examples.my_systems.fsdp:FSDP",
    "EvenFSDP": "examples.my_systems.fsdp:EvenFSDP",
    "adapter-ddp": f"{ADAPTERS}:get_ddp",
    "adapter-optimizer": f"{ADAPTERS}:get_sharded_optimizer",
    "adapter-fsdp": f"{ADAPTERS}:get_fsdp",
    "emmys-ddp": f"{EMMYS}:get_ddp",
    "emmys-fsdp": f"{EMMYS}:get_fsdp",
    "emmys-nothing": f"{EMMYS}:get_nothing",
    "pytorchs-ddp": "torch.nn.parallel:DistributedDataParallel",
    "pytorchs-optimizer": "torch.distributed.optim:ZeroRedundancyOptimizer",
    "pytorchs-fsdp": "tests.support.pytorchs:fsdp",
    "Summing": "tests.support.wrong_wrappers:Summing",
    **{name: f"tests.support.cheats_in_training:{name}" for cheats in CHEATS.values() for name in cheats},
}
"""Implementations outside `tests.support.own`."""
WRONG = {
    "data_parallel": {
        "Summing": OFF,
        "ForgetfulDDP": OFF.replace(r"\S+", "token_embedding.weight"),
        "RoundingDDP": rf"{OFF}|{OFF_AT_FULL_SIZE}",
        "OverflowingDDP": OFF_AT_FULL_SIZE,
        "RaisingDDP": "not timed: it raises TypeError: rank 1 has no",
        "ElsewhereDDP": "not timed: it needs a GPU",
        "Nothing": "not timed: it raises ValueError: tests.support.own has no 'Nothing'",
    },
    "optimizer_sharding": {
        **dict.fromkeys(("LonelyOptimizer", "IdleOptimizer", "StatelessOptimizer", "SlowOptimizer"), OFF),
        "WholeOptimizer": "not timed: a rank holds 1 of all optimizer state",
    },
    "fsdp": {
        "StaleFSDP": OFF,
        "EvenFSDP": OFF,
        "emmys-fsdp": "not timed: a rank holds 1 of all parameters",
        "emmys-nothing": "not timed: it raises ValueError: tests.adapters has no 'get_nothing'",
        "DividingFSDP": r"not timed: it raises AssertionError.*",
        "ShapelessFSDP": r"not timed: after 3 steps \S+ has the shape \(1952,\), and one process's \(61, 32\)",
    },
}


def own_rows(experiment, device, names, **changes):
    """The rows of some implementations, by name, which take part with the first contender of an experiment."""
    kind = EXPERIMENTS[experiment]
    text = ",".join(f"{name}={PLACES.get(name, f'tests.support.own:{name}')}" for name in names)
    cell = make_cell(kind, CELL | {"implementation": text} | changes)
    torch.manual_seed(0)  # ranks begin alike, as in a launch
    with mock.patch.object(kind, "contenders", kind.contenders[:1]):
        rows = measure(cell, device)
    column = kind.details[0]
    assert kind.contenders[0].name in {row.details[column] for row in rows if row.metric == "step"}
    return {name: [row for row in rows if row.details.get(column) == name] for name in names}


def assert_timed(rows):
    measured = {row.metric: row for row in rows if row.status == "ok"}
    assert {"step", *PHASES, "tokens"} - {"synchronization"} <= measured.keys(), [row.message for row in rows]
    assert measured["step"].n == 4
    assert measured["collectives"].mean > 0


def assert_refused(refused, reasons):
    for name, rows in refused.items():
        assert [(row.metric, row.status) for row in rows] == [("step", "skipped")], name
        assert re.fullmatch(reasons[name], rows[0].message), (name, rows[0].message)


@pytest.mark.parametrize("experiment", RIGHT)
@on_all_ranks
def test_right_ones_are_timed_and_wrong_ones_refused(device, experiment):
    right, wrong = RIGHT[experiment], WRONG[experiment]
    rows = own_rows(experiment, device, [*right, *wrong])
    for name in right:
        assert_timed(rows.pop(name))
    assert_refused(rows, wrong)


@pytest.mark.parametrize("experiment", RIGHT)
@on_all_ranks
def test_right_ones_are_timed_in_bf16(device, experiment):
    names = [name for name in RIGHT[experiment] if name != "FSDP"]  # which computes in fp32 only
    for rows in own_rows(experiment, device, names, precision="bf16").values():
        assert_timed(rows)


@pytest.mark.parametrize("experiment", CHEATS)
@on_all_ranks
def test_what_does_less_while_it_is_timed_gets_no_time(device, experiment):
    cheats = {name: f"not timed: (?:{why})" for name, why in CHEATS[experiment].items()}
    assert_refused(own_rows(experiment, device, cheats, rounds=1), cheats)


@on_all_ranks
def test_rows_may_have_to_be_divided_by_ranks(device):
    even = {"size": "even:d_model=24,d_ff=36,num_layers=1,num_heads=3", "vocab_size": 100}
    assert_timed(own_rows("fsdp", device, ["DividingFSDP"], **even)["DividingFSDP"])


def test_none_has_the_name_of_another_contender():
    with pytest.raises(ValueError, match=r"^implementation is 'flat=a:B'; allowed: other names than none, naive, "):
        make_cell(EXPERIMENTS["data_parallel"], {"implementation": "flat=a:B"})
