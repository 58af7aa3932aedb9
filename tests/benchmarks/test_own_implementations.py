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
OFF = r"not timed: after 3 steps \S+ is off from one process's by [\d.]+ of its way"
OFF_AT_FULL_SIZE = r"not timed: its gradient of \S+ is off from the mean over the ranks by [\d.]+ of it"
RIGHT = {
    "data_parallel": ["DDP", "adapter-ddp", "emmys-ddp"],
    "optimizer_sharding": ["ShardedOptimizer", "adapter-optimizer"],
    "fsdp": ["FSDP", "MyFSDP", "adapter-fsdp"],
}
ADAPTERS, EMMYS = (f"{ROOT}/examples/{name}/tests.adapters" for name in ("my_systems", "class/emmy"))
EXAMPLES = {
    "MyFSDP": "examples.my_systems.fsdp:FSDP",
    "EvenFSDP": "examples.my_systems.fsdp:EvenFSDP",
    "adapter-ddp": f"{ADAPTERS}:get_ddp",
    "adapter-optimizer": f"{ADAPTERS}:get_sharded_optimizer",
    "adapter-fsdp": f"{ADAPTERS}:get_fsdp",
    "emmys-ddp": f"{EMMYS}:get_ddp",
    "emmys-fsdp": f"{EMMYS}:get_fsdp",
    "emmys-nothing": f"{EMMYS}:get_nothing",
}
"""Those that are not in `tests.support.own`."""
WRONG = {
    "data_parallel": {
        "SummingDDP": OFF,
        "ForgetfulDDP": OFF.replace(r"\S+", "token_embedding.weight"),
        "RoundingDDP": rf"{OFF}|{OFF_AT_FULL_SIZE}",
        "OverflowingDDP": OFF_AT_FULL_SIZE,
        "RaisingDDP": "not timed: it raises TypeError: rank 1 has no",
        "ElsewhereDDP": "not timed: it needs a GPU",
        "Nothing": "not timed: it raises ValueError: tests.support.own has no 'Nothing'",
    },
    "optimizer_sharding": {
        "LonelyOptimizer": OFF,
        "WholeOptimizer": "not timed: a rank holds 1 of all optimizer state",
    },
    "fsdp": {
        "StaleFSDP": OFF,
        "EvenFSDP": OFF,
        "emmys-fsdp": "not timed: a rank holds 1 of all parameters",
        "emmys-nothing": "not timed: it raises ValueError: tests.adapters has no 'get_nothing'",
        "ShapelessFSDP": r"not timed: after 3 steps \S+ has the shape \(1952,\), and one process's \(61, 32\)",
    },
}


def own_rows(experiment, device, names, **sizes):
    """The rows of some implementations, by name, which take part with the first contender of an experiment."""
    kind = EXPERIMENTS[experiment]
    text = ",".join(f"{name}={EXAMPLES.get(name, f'tests.support.own:{name}')}" for name in names)
    cell = make_cell(kind, CELL | {"implementation": text} | sizes)
    torch.manual_seed(0)  # ranks begin alike, as in a launch
    with mock.patch.object(kind, "contenders", kind.contenders[:1]):
        rows = measure(cell, device)
    column = kind.details[0]
    assert kind.contenders[0].name in {row.details[column] for row in rows if row.metric == "step"}
    return {name: [row for row in rows if row.details.get(column) == name] for name in names}


@pytest.mark.parametrize("experiment", RIGHT)
@on_all_ranks
def test_right_ones_are_timed_and_wrong_ones_refused(device, experiment):
    right, wrong = RIGHT[experiment], WRONG[experiment]
    found = own_rows(experiment, device, [*right, *wrong])
    for name in right:
        measured = {row.metric: row for row in found.pop(name) if row.status == "ok"}
        assert {"step", *PHASES, "tokens"} <= measured.keys()
        assert measured["step"].n == 4
        assert measured["collectives"].mean > 0
    for name, rows in found.items():
        assert [(row.metric, row.status) for row in rows] == [("step", "skipped")], name
        assert re.fullmatch(wrong[name], rows[0].message), (name, rows[0].message)


@on_all_ranks
def test_rows_may_have_to_be_divided_by_ranks(device):
    even = {"size": "even:d_model=24,d_ff=36,num_layers=1,num_heads=3", "vocab_size": 100}
    found = own_rows("fsdp", device, ["DividingFSDP"], **even)["DividingFSDP"]
    assert "step" in {row.metric for row in found if row.status == "ok"}, [row.message for row in found]
    [refused] = own_rows("fsdp", device, ["DividingFSDP"])["DividingFSDP"]
    assert refused.message.startswith("not timed: it raises AssertionError")


def test_none_has_the_name_of_another_contender():
    with pytest.raises(ValueError, match=r"^implementation is 'flat=a:B'; allowed: other names than none, naive, "):
        make_cell(EXPERIMENTS["data_parallel"], {"implementation": "flat=a:B"})
