"""The predictions of memory and time in the report."""

import json

import pytest

from cs336_systems.accounting.units import MIB
from cs336_systems.fit.recorded import PATH, TIME_WITHIN
from scripts.answers import what_fits as section
from scripts.calibration.rates import facts
from scripts.views.data import statistic
from scripts.views.longest_contexts import longest_contexts
from scripts.views.what_fits import judged, predictions
from tests.support.faults import recorded


def test_recorded_steps_are_as_predicted():
    found = predictions(recorded())
    assert len(found) > 300
    assert {"small", "2.7B", "10B"} <= set(found["label"])
    assert judged(found, "time")["time_error"].abs().max() <= TIME_WITHIN


def test_the_facts_of_fit_are_those_of_the_recorded_steps():
    """If not: python -m scripts.calibration.rates."""
    written, found = json.loads(PATH.read_text()), facts(recorded())
    assert written.keys() == found.keys()
    for key, value in found.items():
        assert written[key] == (pytest.approx(value, rel=1e-2) if key == "weights" else value), key


def test_without_a_gpu_the_recorded_one_is_told():
    empty = {name: table.iloc[:0] for name, table in recorded().items()}
    here, nowhere = section.answers(recorded()), section.answers(empty)
    assert nowhere["error"].verdict == ""
    assert 'One #"H200"; trains' in here["fits"].verdict == nowhere["fits"].verdict


@pytest.mark.parametrize("way", ["plain", "flash", "blocks recomputed"])
def test_the_longest_context_is_that_of_the_measured_blocks(way):
    """32 blocks, each as large as a single one was measured at 2048 tokens; weights and moments take 12 bytes each."""
    saved = statistic(
        recorded()["block_memory"],
        "mean",
        size="2.7B",
        context=2048,
        precision="bf16",
        attention="plain" if way == "plain" else "flash",
        metric="saved_activations",
    )
    scores, stream = 4 * 32 * 2048**2 * (4 + 2), 4 * 2048 * 2560 * 4

    def needed(context):
        times = context / 2048
        of_scores = scores * times**2 if way == "plain" else 0
        block = of_scores + times * (saved * MIB - (scores if way == "plain" else 0))
        kept = 32 * times * stream + block if way == "blocks recomputed" else 32 * block
        return 12 * 3.407e9 + kept

    capacity = 150.75e9
    found = longest_contexts("NVIDIA H200", capacity).set_index("label")
    longest = found.loc["2.7B", f"{way} context"]
    assert needed(longest) < found.loc["2.7B", f"{way} memory"] * MIB < capacity < needed(2 * longest)


def test_an_unlisted_gpu_has_no_times_and_a_small_one_fits_nothing():
    found = longest_contexts("a GPU that nobody lists", 150.75e9).set_index("label")
    assert found["plain context"].notna().any()
    assert found.filter(like="seconds").isna().all(axis=None)
    assert section.what_fits("a GPU that nobody lists", 1e9).verdict == ""
