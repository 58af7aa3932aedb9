"""Sentences on optimizers whose state is sharded: what is in use, peaks, steps, and what is communicated."""

import pytest

from cs336_systems.experiments.optimizer_sharding import OptimizerSharding
from scripts.answers import optimizer_state_sharding_accounting
from scripts.views.comparison import contenders
from scripts.views.optimizer_sharding import AFTER_UPDATE, BEFORE_UPDATE, memory, peaks
from tests.prose import CPU, EVEN, GPU, prose, took, training


def trained(*cells, origin=GPU, **setting):
    """A table of steps: each contender, and its moments, with their metrics."""
    return training(OptimizerSharding, ("contender", "moment"), cells, origin, **setting)


def sections(*cells, origin=GPU, **setting):
    found = optimizer_state_sharding_accounting.answers(
        {"optimizer_sharding": trained(*cells, origin=origin, **setting)}
    )
    return prose("optimizer_state_sharding_accounting", found, origin)


def held(contender, in_use, passes, update):
    """A contender with a step, and what both ranks have in use after it, and at most before and in the update, MiB."""
    return {
        contender: took(100.0),
        f"{contender} {BEFORE_UPDATE}": {"held": [0.0] * 2, "allocated": [in_use] * 2, "peak_memory": [passes] * 2},
        f"{contender} {AFTER_UPDATE}": {"held": [0.0] * 2, "allocated": [in_use] * 2, "peak_memory": [update] * 2},
    }


WHOLE = held("unsharded", 1000.0, 1600.0, 2000.0)


def test_what_sharding_leaves_in_use():
    # After a step 750 and 625 of 1000 MiB.
    first, second = held("sharded", 750.0, 1600.0, 800.0), held("sharded", 625.0, 1600.0, 800.0)
    text = sections(WHOLE | first)
    assert "After a step, sharding leaves 75 % of what is in use without. " in text
    assert "with gradients sharded, too," not in text
    text = sections(WHOLE | first, WHOLE | second)
    assert "leaves 62 % to 75 % of what is in use without (least with 4 GPUs, fp32, most with 2 GPUs, fp32)." in text
    assert "After a step, sharding leaves" not in sections(WHOLE)


def test_peaks_beside_the_unsharded_one():
    # The higher one of both phases counts: 1600 of 2000 MiB, and 1000.
    cell = WHOLE | held("sharded", 750.0, 1600.0, 800.0) | held("sharded_gradients", 500.0, 800.0, 1000.0)
    assert "At the peak it is 80 %, and with gradients sharded, too, 50 %." in sections(cell)


def test_peaks_beside_pytorchs_and_the_closed_form():
    # 1600 and 1000 MiB against the least of 2000 and 3200.
    cell = held("sharded", 750.0, 1600.0, 800.0) | held("sharded_gradients", 500.0, 800.0, 1000.0)
    theirs = held("zero_redundancy", 750.0, 3200.0, 800.0) | held("zero_redundancy_view", 750.0, 2000.0, 800.0)
    text = sections(cell | theirs)
    assert "the least of PyTorch's peaks, _sharded_ takes 0.80×, _sharded, gradients too_ 0.50×." in text
    assert "the least of PyTorch's peaks" not in sections(cell)
    form = peaks(memory(trained(WHOLE)))["predicted_peak"].item()
    near = held("unsharded", 1.0, 1.0, 0.98 * form)
    assert "Our peaks are within 2.0 % of the closed form." in sections(near)
    assert "of the closed form." not in sections(theirs)


def test_where_the_allocator_does_not_count():
    text = sections({"unsharded": took(100.0)}, origin=CPU)
    assert "The allocator counts only on GPUs" in text
    assert "_Rest_ is what" not in text
    assert "Our peaks are" not in text
    text = sections(WHOLE)
    assert "_Rest_ is what" in text
    assert "The allocator counts only on GPUs" not in text


@pytest.mark.parametrize(("precision", "autocast"), [("fp32", False), ("bf16", True)])
def test_the_precision_and_the_rounds_are_those_measured(precision, autocast):
    text = sections({"unsharded": took(100.0)}, precision=precision)
    assert ("all in fp32, or autocast over it)" in text) == autocast
    assert "in 1 round; each turn" in text
    assert "in 2 rounds; each turn" in sections({"unsharded": {"step": [100.0] * 4}}, rounds=2)


@pytest.mark.parametrize(("apart", "marked"), [(EVEN, False), ([-10.0, 10.0], True)])
def test_steps_that_scatter_are_marked(apart, marked):
    # The middle three fifths of 90 and 110 ms are 12 % of the median apart.
    assert ("(\\* more than 5.0 % of the median apart)" in sections({"unsharded": took(100.0, apart)})) == marked


@pytest.mark.parametrize(("origin", "profile"), [(GPU, True), (CPU, False)])
def test_where_there_are_profiles(origin, profile):
    text = sections({"unsharded": took(100.0)}, origin=origin)
    assert ("phases, and what a profile of one step on rank 0 shows: medians." in text) == profile


STEPS = {
    "unsharded": 100.0,
    "sharded": 120.0,
    "sharded_peer_memory": 105.0,
    "sharded_gradients": 90.0,
    "zero_redundancy": 150.0,
}
RATIOS = [
    ["sharded", "PyTorch's fastest", "0.80"],
    ["sharded, peer memory", "PyTorch's fastest", "0.70"],
    ["sharded, gradients too", "PyTorch's fastest", "0.60"],
    ["sharded", "unsharded", "1.20"],
    ["sharded, peer memory", "sharded", "0.88"],
    ["sharded, gradients too", "sharded", "0.75"],
]


def compared(*cells):
    """The rows of the table of ratios."""
    table = optimizer_state_sharding_accounting.steps_against(contenders(OptimizerSharding, trained(*cells)))
    return [list(row) for row in table.rows] if table else None


@pytest.mark.parametrize(
    ("left_out", "shown"),
    [
        ("", [0, 1, 2, 3, 4, 5]),
        ("unsharded", [0, 1, 2, 4, 5]),
        ("sharded", [1, 2]),
        ("sharded_peer_memory", [0, 2, 3, 5]),
        ("zero_redundancy", [3, 4, 5]),
    ],
)
def test_which_steps_are_compared(left_out, shown):
    assert compared({name: took(ms) for name, ms in STEPS.items() if name != left_out}) == [RATIOS[i] for i in shown]


def test_of_pytorchs_the_fastest_counts_in_each_cell_that_has_both():
    theirs = {"zero_redundancy": took(150.0), "zero_redundancy_view": took(125.0)}
    cells = [{"sharded": took(100.0)} | theirs, theirs, {"sharded": took(100.0), "zero_redundancy": took(80.0)}]
    assert compared(*cells) == [["sharded", "PyTorch's fastest", "0.80", "–", "1.25"]]
    assert compared({"sharded": took(100.0)}) is None
    assert "compares the steps with each other" not in sections({"sharded": took(100.0)})
    assert "compares the steps with each other" in sections(*cells)


@pytest.mark.parametrize(("apart", "ratio"), [([-1.0, 1.0], "0.90"), ([-5.0, 5.0], "0.90"), ([-15.0, 15.0], "≈ 0.90")])
def test_steps_whose_samples_overlap_are_marked(apart, ratio):
    # At 15, 75 and 105 over 85 and 115 ms are 0.65 to 1.24, the middle three fifths up to 1.04; at 5, up to 0.97.
    cell = {"sharded": took(90.0, apart), "unsharded": took(100.0, apart)}
    assert compared(cell) == [["sharded", "unsharded", ratio]]


def test_what_the_optimizer_takes():
    whole = {"unsharded": took(100.0, optimizer=8.0)}
    text = sections(whole | {"sharded": took(100.0, optimizer=6.0)}, whole | {"sharded": took(100.0, optimizer=9.0)})
    assert "with its communication, takes 6.00 ms to 9.00 ms sharded, 8.00 ms unsharded: a rank updates" in text
    assert "over peer memory it takes" not in text
    peers = {"sharded": took(100.0, optimizer=6.0), "sharded_peer_memory": took(100.0, optimizer=4.0)}
    assert "others. Sharded over peer memory it takes 4.00 ms. " in sections(whole | peers)
    assert "The optimizer's part, with" not in sections(whole)


def test_what_is_communicated():
    # 10 ms unsharded, 20 and 15 sharded; a rank sends 3/2 of what it does unsharded, and as much.
    cell = {name: took(100.0, communication=ms) for name, ms in (("unsharded", 10.0), ("sharded", 20.0))}
    both = cell | {"sharded_gradients": took(100.0, communication=15.0)}
    assert (
        "communication takes, relative to _unsharded_, 2.00× the time in _sharded_ (bytes: 1.50×) and 1.50× the time "
        "in _sharded, gradients too_ (bytes: 1.00×); a collective"
    ) in sections(both)
    assert "In the profiled steps communication takes" not in sections(cell)
