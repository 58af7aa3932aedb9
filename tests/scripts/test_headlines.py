"""The recorded machine's figures next to those of another GPU: of the same quantities, over the same cells."""

import contextlib
from pathlib import Path

import pandas
import pytest

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan
from scripts.rendering.contents import read_contents
from scripts.stages.writeup import compute, fill
from scripts.views.coverage import cover
from scripts.views.data import at_one_setting, frame
from scripts.views.headlines import compare, headlines
from tests.samples import ROOT, config, planned_rows

CONTENTS = read_contents(ROOT / "report" / "contents.yaml")
A100 = "NVIDIA A100-SXM4-80GB"
SLOWER = {"fp32": 2.0, "bf16": 4.0}
CLOCKED = ["mean", "median", "p20", "p80", "std"]


@pytest.fixture(scope="module")
def end_to_end():
    return frame("end_to_end", planned_rows("end_to_end", "handout"))


def tables_of(end_to_end):
    return {name: frame(name, []) for name in EXPERIMENTS} | {"end_to_end": end_to_end}


def on_an_a100(table):
    slower = table.assign(gpu=A100)
    timed = slower["unit"] == "ms"
    slower.loc[timed, CLOCKED] = slower.loc[timed, CLOCKED].mul(slower.loc[timed, "precision"].map(SLOWER), axis=0)
    return slower


def figures(end_to_end):
    tiles = headlines(CONTENTS, tables_of(at_one_setting("end_to_end", end_to_end)))
    return {tile.quantity: tile.number for tile in tiles}


def compared(own, recorded):
    own = tables_of(at_one_setting("end_to_end", own))
    return compare(CONTENTS, headlines(CONTENTS, own), own, tables_of(recorded))


def test_they_are_the_recorded_reports_own_where_all_cells_are_shared(end_to_end):
    found = compared(on_an_a100(end_to_end), end_to_end)
    recorded, own = figures(end_to_end), figures(on_an_a100(end_to_end))
    assert found.machine == "NVIDIA H200"
    assert found.numbers == {quantity: recorded[quantity] for quantity in recorded if quantity in own} != {}
    name = "gain from bf16, 2.7B, 512"
    assert float(found.numbers[name][:-1]) == pytest.approx(2 * float(own[name][:-1]), rel=0.01)


def test_only_cells_that_both_measured_count(end_to_end):
    smaller = end_to_end[~end_to_end["size"].isin(["2.7B", "10B"])]
    of_smaller = figures(smaller)
    for own, recorded in ((smaller, end_to_end), (end_to_end, smaller)):
        numbers = compared(on_an_a100(own), recorded).numbers
        assert numbers.items() <= of_smaller.items()
        # The largest size here is one that the recorded machine lacks: nothing to compare with.
        assert ("gain from bf16, xl, 512" in numbers) == (own is smaller)
    assert compared(on_an_a100(end_to_end).assign(batch_size=2), end_to_end).numbers == {}


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({"machine": f"1 x {A100}"}, True),
        ({"machine": "2 x NVIDIA H200"}, False),
        ({"machine": "cpu"}, False),
        ({"recorded": "nvidia-h200"}, False),
    ],
)
def test_another_gpu_is_compared(changes, compared):
    plan = make_plan(config(**changes), ROOT / "recorded")
    assert plan.reference == (Path("recorded/nvidia-h200/raw") if compared else None)


def test_the_title_page_shows_them(end_to_end):
    plan = make_plan(config(machine=f"1 x {A100}"))
    own = tables_of(on_an_a100(end_to_end))
    rest = cover(plan, own), pandas.DataFrame(columns=["check", "outcome", "detail"])
    with contextlib.chdir(ROOT):
        text = fill(CONTENTS, compute(CONTENTS, plan, own, *rest, tables_of(end_to_end)))
    number = figures(end_to_end)["gain from bf16, 2.7B, 512"]
    assert f'reference: [#"H200";: {number}]' in text
    assert 'the recorded values of #"NVIDIA H200";, over the cells' in text
